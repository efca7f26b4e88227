"""Program: trains with Accelerate, under a library or `accelerate launch`.

Arguments: those of `benchmarks.stepping`.
"""

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.stepping import BATCH_SIZE, Config, Steps, main, names_of, network, rows, rows_in

of_library = names_of("torch") and names_of()


def train(config: Config) -> None:
    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(rows(rows_in(config)), batch_size=BATCH_SIZE, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = Steps(config, accelerator.process_index)
    for numbers, labels in loader:
        loss = F.cross_entropy(model(numbers), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if of_library is not None:
            with steps.timed():
                of_library.report({"epoch": 0})
        steps.stepped()


if __name__ == "__main__":
    main(train, alone=train)
