"""A copy of scripts/ in a temporary folder, with stand-ins for system programs first in the PATH."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The user's own settings must not reach the scripts.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("HRM_", "PIP_", "CUDA")) and key != "CI"}


class ScriptCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_scripts_")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "project")
        self.bin = pathlib.Path(folder.name, "bin")
        self.root.mkdir()
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        self.stand_in("nvidia-smi", "exit 9")

    def stand_in(self, name, body):
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)

    def write(self, name, text):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run_script(self, *command, **env):
        return subprocess.run([self.root / "scripts" / command[0], *command[1:]], stdin=subprocess.DEVNULL,
                              env={**CLEAN, "PATH": f"{self.bin}:{CLEAN['PATH']}", **env}, capture_output=True,
                              text=True, timeout=120)

    def assert_one_error(self, result, code, *parts):
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual((result.returncode, len(errors)), (code, 1), result.stdout + result.stderr)
        for part in parts:
            self.assertIn(part, errors[0])


class Installed(ScriptCase):
    """Where nothing is missing."""

    def setUp(self):
        super().setUp()
        self.stand_in("dpkg-query", "echo installed")
        venv = self.root / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        site = next(venv.glob("lib/python3*/site-packages"))
        (site / "pip.py").touch()
        for name, first in (("pip", f"#!{venv}/bin/python3\n"),
                            ("torchrun", f"#!/bin/sh\n'''exec' {venv}/bin/python3 \"$0\" \"$@\"\n' '''\n")):
            self.write(f".venv/bin/{name}", f"{first}import sys\nprint(sys.prefix)\n# not this one: /other{venv}/\n")
            (venv / "bin" / name).chmod(0o755)
        for name in ("torch_cpu", "tools", "chat_templates"):
            pins = (self.root / f"scripts/requirements/{name}.txt").read_bytes() + (venv / "pyvenv.cfg").read_bytes()
            self.write(f".venv/hrm-setup/{name}", hashlib.sha256(pins).hexdigest())
