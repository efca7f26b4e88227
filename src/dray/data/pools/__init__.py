"""Operations in worker actors: the pools, and the options that request one."""
