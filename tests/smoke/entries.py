#!/usr/bin/env python3
"""The entries of a checkpoint: name, file, dtype and shape of each tensor, and the names of the numbers beside them.

    tests/smoke/entries.py --binary PATH [--configs FOLDER] [RECIPE...]

trains each shrunken recipe one step and writes its list to tests/smoke/entries/. smoke.py compares its checkpoints with
these lists, since whoever renames an entry makes older checkpoints unreadable. They were made by hrm_train 0.1.0 (commit
ec6d15318dbb), with the recipes of that commit (--configs). Only Python's standard library is used.
"""
import argparse
import collections
import json
import os
import pathlib
import pickle
import sys
import tempfile
import zipfile

FOLDER = pathlib.Path(__file__).parent / "entries"
Tensor = collections.namedtuple("Tensor", "dtype shape")


class Module:
    def __setstate__(self, state):
        self.members = state


class Unpickler(pickle.Unpickler):
    """Reads the pickle of a TorchScript archive without torch: modules become their members, tensors their shapes."""

    def find_class(self, module, name):
        if name == "_rebuild_tensor_v2":
            return lambda storage, offset, shape, *rest: Tensor(storage, list(shape))
        if module == "collections":
            return getattr(collections, name)
        if module == "torch":
            return name
        if module.startswith("__torch__"):
            return Module
        return lambda *values: list(values[0]) if len(values) == 1 else values

    def persistent_load(self, saved):
        return str(saved[1]).removesuffix("Storage")


def tensors_of(value, prefix):
    if isinstance(value, Tensor):
        yield prefix, value
    members = value.members if isinstance(value, Module) else value if isinstance(value, dict) else {}
    for name, member in members.items():
        yield from tensors_of(member, f"{prefix}.{name}" if prefix else str(name))


def entries_of_archive(path):
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(name) as file:
            return [f"{path.name}: {entry} {tensor.dtype} {tensor.shape}"
                    for entry, tensor in tensors_of(Unpickler(file).load(), "")]


def entries_of(checkpoint):
    """Sorted lines "file: name dtype shape"."""
    lines = entries_of_archive(checkpoint / "model.pt")
    data = (checkpoint / "state.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    lines += [f"state.safetensors: {name} (metadata)" for name in header.pop("__metadata__", {})]
    lines += [f"state.safetensors: {name} {entry['dtype']} {entry['shape']}" for name, entry in header.items()]
    return sorted(lines)


def program(path):
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        sys.exit(f"error: '{path}' is no program: build it first (scripts/build)")
    return str(pathlib.Path(path).resolve())


def main():
    import smoke
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--configs", default=str(smoke.ROOT), metavar="FOLDER", help="holds configs/ (default: the project)")
    parser.add_argument("recipe", nargs="*", help="configs/... (default: all)")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for recipe in args.recipe or smoke.configs():
        with tempfile.TemporaryDirectory(prefix="hrm_entries_") as work:
            run = smoke.Smoke(program(args.binary), recipe, work)
            run.prepare()
            line = run.train_args(1)
            line[line.index("--config") + 1] = str(pathlib.Path(args.configs).resolve() / recipe)
            run.call(*line)
            lines = run.entries()
        (FOLDER / f"{pathlib.Path(recipe).stem}.txt").write_text("\n".join(lines) + "\n")
        print(f"{recipe}: {len(lines)} entries", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    main()
