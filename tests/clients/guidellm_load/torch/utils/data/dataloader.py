from typing import Generic, TypeVar

Item = TypeVar("Item")


class DataLoader(Generic[Item]):
    def __init__(self, dataset, batch_size, shuffle, collate_fn, num_workers, prefetch_factor, generator):
        assert batch_size == 1 and not shuffle and num_workers == 0 and prefetch_factor and generator is not None
        self.dataset, self.collate_fn = dataset, collate_fn

    def __iter__(self):
        return (self.collate_fn([item]) for item in self.dataset)
