from . import dataloader
from .dataset import IterableDataset


def get_worker_info():
    """None: nobody else reads."""
