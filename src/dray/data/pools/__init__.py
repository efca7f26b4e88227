"""Operations in worker actors: pools of them, and the options that ask for one."""
