# SPDX-License-Identifier: Apache-2.0
"""README.md: its examples, all at the same time, against what `quickstart.sh --keep` leaves running."""

import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import BUILD, ROOT, wait_until

PATIENCE = 180
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shell_examples():
    """The commands behind "$", each with the lines that go on after a pipe."""
    return [re.sub(r"\n +", " ", command) for command in re.findall(r"^    \$ ((?:.*\|\n)*.*)$", README, re.M)]


def python_example():
    return re.search(r"## From Python.*?\n\n((?:    .*\n)+)", README).group(1).replace("\n    ", "\n").strip()


def example(word):
    """The one example that has this word."""
    (found,) = [command for command in shell_examples() if word in command]
    return found


class Quickstart:
    """quickstart.sh --keep, up to the line that it prints for another terminal."""

    def __enter__(self):
        self.process = subprocess.Popen(["sh", str(ROOT / "tests/quickstart.sh"), "--keep"], stdout=subprocess.PIPE,
                                        stdin=subprocess.DEVNULL, env={**os.environ, "NL_BUILD": str(BUILD.resolve())})
        self.export = ""
        while not self.export.startswith("export "):
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "quickstart.sh hangs"
            self.export = self.process.stdout.readline().decode()
            assert self.export, "quickstart.sh has ended"
        self.socket = Path(re.search(r"NOLAGD_SOCKET=(\S+)", self.export).group(1))
        self.started = []
        return self

    def __exit__(self, *_):
        for process in self.started:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=PATIENCE)

    def start(self, command):
        """Without stdin, as a service or a cron job has it."""
        self.started.append(subprocess.Popen(
            ["bash", "-c", f"{self.export}\n{command}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            start_new_session=True, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}))
        return self.started[-1]

    def run(self, command):
        process = self.start(command)
        out, _ = process.communicate(timeout=PATIENCE)
        self.started.remove(process)
        assert process.returncode == 0, command
        return out.decode()


    def wait_for_topics(self, count):
        wait_until(lambda: f'"subscriptions":{count}' in self.run("nolag status --json"), f"{count} subscriptions")


def lines_of(process, count):
    """That many lines of its output, as they come."""
    text, end = b"", time.monotonic() + PATIENCE
    while text.count(b"\n") < count:
        assert select.select([process.stdout], [], [], max(0, end - time.monotonic()))[0], text
        part = os.read(process.stdout.fileno(), 4096)
        assert part, text
        text += part
    return text.decode().splitlines()


def test_examples_run_together():
    with Quickstart() as quickstart:
        shell = quickstart.start(example('"type":"subscribe"'))
        quickstart.wait_for_topics(1)
        command = quickstart.start(example("nolag sub"))
        quickstart.wait_for_topics(2)
        python = quickstart.start("/usr/bin/python3 -c '" + python_example().replace("'", "'\\''") + "'")
        assert "'subscribed'" in lines_of(python, 1)[0]
        published = quickstart.run(example('"type":"publish"'))
        assert json.loads(published) == {"type": "published", "id": 1, "topic": "demo/ops/events"}
        assert published.replace(" ", "").strip() in README, "the answer is as README.md shows it"
        quickstart.run(example("nolag pub -t demo/ops/tasks"))
        quickstart.run(example("nolag pub -t demo/ops/events"))
        assert lines_of(shell, 2) == ["hi", "hi"]
        assert lines_of(command, 1) == ["got hello"]
        assert ["'text': 'hi'" in line for line in lines_of(python, 2)] == [True, True]
        assert "status: connected" in quickstart.run(example("nolag status"))
    assert quickstart.process.returncode == 130 and not quickstart.socket.parent.exists(), "Ctrl-C cleans up"


def test_wrong_use_of_quickstart():
    done = subprocess.run(["sh", str(ROOT / "tests/quickstart.sh"), "--keeep"], capture_output=True, check=False)
    assert done.returncode == 2 and done.stdout == b"" and b"usage: " in done.stderr


@pytest.mark.parametrize("name", ["README.md", "clients/README.md"])
def test_readme_is_short(name):
    assert (ROOT / name).read_text(encoding="utf-8").count("\n") < 200
