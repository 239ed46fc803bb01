"""A program that waits before main() with its libraries loaded, and runs main() in a child for each start (ready.c)."""
import array
import ctypes
import os
import pathlib
import socket
import subprocess
import time

SOURCE = pathlib.Path(__file__).with_name("ready.c")


class Child:
    """A started main(), with the part of subprocess.Popen that the campaigns use."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, seconds=None):
        end = None if seconds is None else time.monotonic() + seconds
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(0.002)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


class Ready:
    def __init__(self, binary, environment, prepare):
        """`environment` is that in which the libraries are loaded, ready.so among them; `prepare` is done before."""
        self.link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(60)
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: the children become ours
        with other:
            environment = dict(environment, HRM_READY_SOCKET=str(other.fileno()))
            self.process = subprocess.Popen([binary], env=environment, stdin=subprocess.DEVNULL, preexec_fn=prepare,
                                            pass_fds=[other.fileno()])

    def start(self, line, environment, *files):
        """`files`: one that takes stdout and stderr, or three for stdin, stdout and stderr."""
        words = [os.getcwd(), str(len(line)), *map(str, line), *(f"{name}={value}" for name, value in environment.items())]
        packet = b"".join(os.fsencode(word) + b"\0" for word in words)
        self.link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno() for file in files]))])
        pid = int.from_bytes(self.link.recv(16), "little")
        if pid == 0:
            raise OSError(f"the program that waits has ended with {self.process.wait()}")
        return Child(pid)

    def end(self):
        self.link.close()
        self.process.wait()


def build(folder):
    """The library that makes a program wait; None where there is no C compiler."""
    library = folder / "ready.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library
