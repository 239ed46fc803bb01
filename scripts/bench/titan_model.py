"""What torchtitan 0.2.2 loads by --experimental.custom_import: the model of compare_titan.py under the name `hrm_bench`,
and rows of random tokens, so that neither a data set nor a tokenizer is needed."""
import dataclasses

import torch
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.models import llama3
from torchtitan.protocols.train_spec import register_train_spec

VOCABULARY, ROWS = 32000, 16


class RandomRows(IterableDataset):
    """Row i of a rank is always the same; after ROWS of them they begin again."""

    def __init__(self, rank, length):
        draw = torch.Generator().manual_seed(rank)
        self.rows = torch.randint(VOCABULARY, (ROWS, length + 1), generator=draw)

    def __iter__(self):
        while True:
            for row in self.rows:
                yield {"input": row[:-1]}, row[1:]


class Loader(ParallelAwareDataloader):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def make_loader(dp_world_size, dp_rank, tokenizer, job_config, **_):
    training = job_config.training
    return Loader(RandomRows(dp_rank, training.seq_len), dp_rank, dp_world_size,
                  batch_size=training.local_batch_size)


SHAPE = llama3.TransformerModelArgs(dim=2048, n_layers=24, n_heads=16, n_kv_heads=8, vocab_size=VOCABULARY,
                                    rope_theta=500000)
LARGE = llama3.TransformerModelArgs(dim=4096, n_layers=32, n_heads=32, vocab_size=VOCABULARY, rope_theta=10000)
register_train_spec("hrm_bench", dataclasses.replace(
    llama3.get_train_spec(), model_args={"1b": SHAPE, "7b": LARGE}, build_tokenizer_fn=None, build_dataloader_fn=make_loader,
    build_validator_fn=None, state_dict_adapter=None))
