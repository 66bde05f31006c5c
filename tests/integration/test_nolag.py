# SPDX-License-Identifier: Apache-2.0
"""The nolag command, flag by flag, against a scripted daemon: what it asks, what it prints, how it ends."""
import base64
import grp
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest
from harness import Daemon as RealDaemon
from harness import alice

BUILD = os.environ.get("NL_BUILD", os.path.join(os.path.dirname(__file__), "..", "..", "build"))
NOLAG = os.path.abspath(os.path.join(BUILD, "clients", "nolag"))
PATIENCE = 20  # seconds that anything may take before it is a failure; nothing waits that long when all is well
TOPIC = "demo/ops/events"


class Peer:
    """One connection of the scripted daemon."""

    def __init__(self, daemon, sock):
        self.daemon, self.sock, self.buffer = daemon, sock, b""
        sock.settimeout(PATIENCE)

    def __iter__(self):
        """The requests, until the client closes its sending side."""
        while True:
            line = self.read_line()
            if line is None:
                return
            yield json.loads(line)

    def read_line(self):
        while b"\n" not in self.buffer:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                line, self.buffer = self.buffer, b""
                return self.daemon.note(line) if line else None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return self.daemon.note(line)

    def is_quiet(self, seconds=0.05):
        """True when the client has nothing to say for that long."""
        return b"\n" not in self.buffer and not select.select([self.sock], [], [], seconds)[0]

    def send(self, *lines):
        data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def message(self, data, topic=TOPIC, **fields):
        self.send({"type": "message", "topic": topic, "data": data, **fields})


def answer(request):
    """What a daemon whose session is connected says."""
    id_ = {"id": request["id"]} if "id" in request else {}
    topic = request.get("topic")
    answers = {
        "ping": {"type": "pong"},
        "status": {"type": "status", "session": "default", "status": "connected", "since": 1700000000,
                   "actorTokenId": "alice", "subscriptions": 2, "outbox": 0},
        "sessions": {"type": "sessions", "sessions": [
            {"session": "default", "status": "connected", "since": 1700000000},
            {"session": "ops", "status": "reconnecting", "since": 1700000001, "reason": "dns"}]},
        "auth": {"type": "auth", "success": True, "session": request.get("session")},
        "subscribe": {"type": "subscribed", "topic": topic, "loadBalance": False},
        "publish": {"type": "published", "topic": topic},
    }
    return {**answers[request["type"]], **id_}


def serve(peer):
    for request in peer:
        peer.send(answer(request))


class Daemon:
    """Listens, and runs script(peer) for each connection in a thread; its failures fail the test."""

    def __init__(self, path, script=serve):
        self.path, self.script = str(path), script
        self.lines, self.failures, self.peers, self.threads = [], [], [], []
        self.changed, self.closing = threading.Condition(), threading.Event()

    def __enter__(self):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.acceptor = threading.Thread(target=self.accept)
        self.acceptor.start()
        return self

    def __exit__(self, kind, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.acceptor.join()
        self.closing.set()
        for sock in self.peers:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join()
        self.listener.close()
        os.unlink(self.path)
        if kind is None and self.failures:
            raise self.failures[0]

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.peers.append(sock)
            self.threads.append(threading.Thread(target=self.run, args=(sock,)))
            self.threads[-1].start()

    def run(self, sock):
        try:
            self.script(Peer(self, sock))
        except Exception as failure:  # told by __exit__
            self.failures.append(failure)
        finally:
            sock.close()

    def note(self, line):
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()
        return line

    def wait_for(self, count):
        """Waits until so many lines have come."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.lines) >= count, PATIENCE), self.lines

    @property
    def requests(self):
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def daemon(path):
    with Daemon(path) as d:
        yield d


def environment(path):
    env = {k: v for k, v in os.environ.items() if k != "NOLAGD_SOCKET"}
    env["UBSAN_OPTIONS"] = "halt_on_error=1:exitcode=98"
    if path is not None:
        env["NOLAGD_SOCKET"] = str(path)
    return env


def nolag(path, *args, stdin=b"", **kwargs):
    return subprocess.run([NOLAG, *args], input=stdin, capture_output=True, env=environment(path), timeout=PATIENCE,
                          **kwargs)


def start(path, *args, **kwargs):
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    return subprocess.Popen([NOLAG, *args], env=environment(path), **options)


def finish(process):
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def with_script(path, script, *args, **kwargs):
    with Daemon(path, script) as d:
        result = nolag(path, *args, **kwargs)
    return d, result


def error(name, **fields):
    return {"type": "error", "error": name, "hint": "do something", **fields}


def refusing(name, **fields):
    """A daemon that answers every request with that error."""
    def script(peer):
        for request in peer:
            peer.send(error(name, request=request["type"], id=request.get("id"), **fields))
    return script


def silent(peer):
    for _ in peer:
        pass


def stuck(peer):
    """Never answers and never closes."""
    silent(peer)
    peer.daemon.closing.wait()


# The command line

VERBS = ["sub", "pub", "presence", "lobby", "status", "sessions", "ping", "raw"]
FLAGS = {
    "sub": ["-t, --topic", "--filter", "--group", "-q, --qos", "-C, --count", "-v, --verbose", "-F, --format",
            "-N, --no-newline", "--bytes", "--json", "-E, --only-subscribe", "--retry", "--quiet", "-d, --debug", "--session"],
    "pub": ["-t, --topic", "-m, --message", "-f, --file", "-s, --stdin", "-l, --lines", "--jsonl", "-n, --null",
            "--string", "--bytes", "--filter", "-q, --qos", "-r, --retain", "--json", "--quiet", "--session"],
    "presence": ["-m, --message", "-C, --count", "-d, --debug", "--json", "--quiet", "--session"],
    "lobby": ["-C, --count", "--json", "--quiet", "--session"],
    "status": ["    --session", "--exit-code", "--json"],
    "sessions": ["--json"],
    "ping": ["--json"],
    "raw": ["--json", "--exit-code", "--session"],
}


def test_help_lists_verbs_and_exit_codes():
    result = nolag(None, "--help")
    text = result.stdout.decode()
    assert result.returncode == 0 and result.stderr == b""
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", text, re.M)
    for code in (0, 1, 2, 3, 4, 5, 6, 27):
        assert re.search(rf"^  {code} ", text, re.M)


@pytest.mark.parametrize("args", [["-h"], ["help"]])
def test_short_help(args):
    assert nolag(None, *args).stdout == nolag(None, "--help").stdout != b""


def test_help_says_what_to_expect():
    text = nolag(None, "sub", "--help").stdout.decode()
    assert re.search(r"%f .*several as a\|b$", text, re.M)
    assert "nothing while nobody else" in text


@pytest.mark.parametrize("asked", [["-h"], ["--help"], ["-t", TOPIC, "-h"], [TOPIC, "--help"]])
@pytest.mark.parametrize("verb", ["sub", "pub"])
def test_help_goes_to_stdout(verb, asked):
    result = nolag(None, verb, *asked)
    assert result.returncode == 0 and result.stderr == b"" and result.stdout == nolag(None, verb, "--help").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_lists_its_flags(verb):
    result = nolag(None, verb, "--help")
    text = result.stdout.decode()
    assert result.returncode == 0 and f"usage: nolag {verb}" in text
    for flag in FLAGS[verb] + ["-W, --timeout", "--socket", "-h, --help"]:
        assert flag in text
    assert "token" not in text


def test_version():
    result = nolag(None, "--version")
    assert result.returncode == 0 and re.fullmatch(rb"nolag \d+\.\d+\.\d+\n", result.stdout)


@pytest.mark.parametrize("args, said", [
    ([], "nolag --help"),
    (["sbu"], "did you mean sub?"),
    (["frobnicate"], "nolag --help lists them"),
    (["sub"], "-t TOPIC"),
    (["sub", "--topci", "a"], "did you mean --topic?"),
    (["sub", "-Z"], "unknown flag -Z"),
    (["sub", "-t"], "--topic needs its TOPIC"),
    (["sub", TOPIC], "did you mean -t " + TOPIC),
    (["sub", "-t", TOPIC, "-C", "0"], '"0" is no COUNT for --count: a whole number, at least 1'),
    (["sub", "-t", TOPIC, "-C", "many"], "for --count: a whole number, at least 1"),
    (["sub", "-t", TOPIC, "-q", "3"], '"3" is no QOS for --qos: a whole number from 0 to 2'),
    (["sub", "-t", TOPIC, "-W", "0"], "for --timeout: a number above 0, such as 0.5"),
    (["sub", "-t", TOPIC, "-W", "nan"], "for --timeout: a number above 0"),
    (["sub", "-t", TOPIC, "-W", "5s"], "for --timeout: a number above 0"),
    (["sub", "-t", TOPIC, "-F", "%p %y"], "no %y"),
    (["sub", "-t", TOPIC, "-F", "100%"], "no %;"),
    (["sub", "-t", TOPIC, "-F", r"a\\\qb"], r"no \q;"),
    (["sub", "-t", TOPIC, "-F", "a\\"], "no \\;"),
    (["sub", "-t", TOPIC, "-v", "--json"], "only one of"),
    (["sub", "-t", "a/b/c", "-t", "a/b"], "nolag: sub: -t a/b: topics are app/room/topic"),
    (["sub", "-t", "a/b/#"], "-t a/b/#: there are no wildcards; topics are app/room/topic"),
    (["sub", "-t", "a/+/c"], "-t a/+/c: there are no wildcards"),
    (["pub", "-m", "x", "-t", "a/b/c/d/e"], "-t a/b/c/d/e: topics are"),
    (["pub", "-m", "x", "-t", "*"], "-t *: there are no wildcards"),
    (["pub", "--jsonl", "-t", ""], "-t : topics are"),
    (["sub", "-t", TOPIC, "--socket", "/" + "x" * 200], "longer than"),
    (["pub", "-t", TOPIC], "what to publish?"),
    (["pub", "-m", "x"], "where to?"),
    (["pub", "-t", TOPIC, "-m", "x", "-n"], "only one of"),
    (["pub", "-t", TOPIC, "-l", "--string", "--bytes"], "only one of"),
    (["pub", "-t", TOPIC, "-m", "x", "--filter", "a", "--filter", '["b","c"]'], '["b","c"]: one list alone'),
    (["pub", "-t", TOPIC, "-t", "a/b/c", "--jsonl"], "one -t"),
    (["pub", "-t", TOPIC, "-m", "hello", "world"], 'unexpected argument "world"; a value with blanks in it needs quotes'),
    (["pub", "-m", "hello", TOPIC], f"did you mean -t {TOPIC}?"),
    (["pub", "-t", TOPIC, "-s", "ops"], 'unexpected argument "ops": -s is all of stdin; a session is --session'),
    (["pub", "-t", TOPIC, "-m", "a", "-m", "b"], "--message is given twice; it takes one TEXT"),
    (["pub", "-t", TOPIC, "-f", "a", "--file", "b"], "--file is given twice"),
    (["status", "--session", "a", "--session", "b"], "--session is given twice"),
    (["sub", "-h", "localhost", "-t", TOPIC], 'unexpected argument "localhost": -h is help; which broker is used'),
    (["pub", "-t", TOPIC, "-m", "x", "-h", "localhost"], "nolagd.conf"),
    (["raw", "-h", "localhost"], "nolagd.conf"),
    (["-h", "localhost", "sub"], 'unexpected argument "localhost": -h is help; which broker is used'),
    (["subscribe", "-t", TOPIC], "did you mean sub?"),
    (["publish"], "did you mean pub?"),
    (["--session", "x", "pub"], "flags come behind the verb, as in nolag sub --session\n"),
    (["--token=s3cret", "sub"], "as in nolag sub --token\n"),
    (["status", "-s", "ops"], "unknown flag -s"),
    (["ping", "--json=yes"], "takes no argument"),
    (["status", "now"], "unexpected argument"),
])
def test_wrong_use(args, said):
    result = nolag("/nonexistent", *args)
    assert result.returncode == 2 and result.stdout == b""
    assert said in result.stderr.decode() and result.stderr.startswith(b"nolag: ")


@pytest.mark.parametrize("filter_, said", [
    ('["a",', "not a JSON list"), ("[a]", "not a JSON list"), ("[", "not a JSON list"), ('["a","b"] x', "not a JSON list"),
    ("[]", "a filter is a string"), (" [ ] ", "a filter is a string"), ('["a"]', "a list of two or more"),
    ('["a",1]', "a filter is a string"), ('["a",["b","c"]]', "a filter is a string"), ('["a",""]', "a filter is a string"),
    ('{"a":1}', "no object"), (" {", "no object"), ("", "a filter is a string"), ("a|", "a filter is"),
    ("a/b", "without"), ('["a","b#"]', "without"), pytest.param("x" * 1025, "longer than 1024 bytes", id="long"), ("\udcff", "not UTF-8")])
@pytest.mark.parametrize("verb", [["sub"], ["pub", "-m", "x"]])
def test_wrong_filter(verb, filter_, said):
    """The same for both, and never taken for a text that nothing matches."""
    result = nolag("/nonexistent", *verb, "-t", TOPIC, "--filter", filter_)
    assert result.returncode == 2
    assert result.stderr.startswith(b"nolag: %s: --filter " % verb[0].encode()) and said in result.stderr.decode(errors="replace")


@pytest.mark.parametrize("args", [["--token", "s3cret"], ["--token=s3cret"]])
@pytest.mark.parametrize("verb", VERBS)
def test_no_token_on_a_command_line(verb, args):
    result = nolag(None, verb, *args)
    assert result.returncode == 2
    assert b"unknown flag --token" in result.stderr and b"s3cret" not in result.stderr


@pytest.mark.parametrize("short, long", [
    (["-t", TOPIC, "-m", "x"], ["--topic", TOPIC, "--message", "x"]),
    (["-t", TOPIC, "-m", "x", "-q", "2", "-r"], [f"--topic={TOPIC}", "--message=x", "--qos=2", "--retain"]),
    (["-t", TOPIC, "-f", "/proc/sys/kernel/ostype"], ["--topic", TOPIC, "--file", "/proc/sys/kernel/ostype"]),
    (["-t", TOPIC, "-s"], ["--topic", TOPIC, "--stdin"]),
    (["-t", TOPIC, "-l"], ["--topic", TOPIC, "--lines"]),
    (["-t", TOPIC, "-n", "-W5"], ["--topic", TOPIC, "--null", "--timeout", "5"]),
])
def test_short_and_long_flags_of_pub_are_the_same(daemon, path, short, long):
    assert nolag(path, "pub", *short, stdin=b"in\n").returncode == 0
    once = len(daemon.lines)
    assert nolag(path, "pub", *long, stdin=b"in\n").returncode == 0
    assert once and daemon.lines[:once] == daemon.lines[once:]


def test_socket_flag_goes_before_the_environment(daemon, path):
    assert nolag("/nonexistent", "ping", "--socket", str(path)).stdout == b"pong\n"
    assert nolag(path, "ping").stdout == b"pong\n"
    assert nolag(path, "ping", "--socket", "").stdout == b"pong\n"  # as an empty NOLAGD_SOCKET: not given


# Reaching nolagd

def test_no_socket(path):
    result = nolag(path, "ping")
    assert result.returncode == 3
    assert f"cannot connect to {path}" in result.stderr.decode() and b"systemctl status nolagd.socket" in result.stderr


def test_nothing_listens(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    result = nolag(path, "sub", "-t", TOPIC)
    assert result.returncode == 3
    assert b"nothing listens there" in result.stderr and b"systemctl status" in result.stderr


@pytest.fixture
def public():
    """A folder that everyone may enter, with the command in it: the build folder may be private."""
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    shutil.copy(NOLAG, folder)
    yield folder
    shutil.rmtree(folder)


def as_nobody(folder, path, *args):
    return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"{folder}/nolag",
                           *(args or ["ping"]), "--socket", path], capture_output=True, timeout=PATIENCE)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
@pytest.mark.parametrize("gid, mode, said", [
    (grp.getgrnam("users").gr_gid, 0o660,
     'you are not in the group "users" that owns it: sudo usermod -aG users nobody, then log in again'),
    (4242424, 0o660, "only the group 4242424"),
    (0, 0o660, "SocketGroup= in nolagd.socket, or without systemd socket_group in nolagd.conf"),
    (grp.getgrnam("users").gr_gid, 0o600, 'only "root" may use it (mode 0600)'),
])
def test_permission_denied(public, gid, mode, said):
    path = os.path.join(public, "s")
    with Daemon(path):
        os.chown(path, 0, gid)
        os.chmod(path, mode)
        result = as_nobody(public, path)
    assert result.returncode == 5
    assert result.stderr.decode().startswith(f"nolag: cannot connect to {path}: permission denied; ")
    assert said in result.stderr.decode() and result.stderr.count(b"\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_permission_denied_by_the_folder(public, path):
    os.chmod(path.parent, 0o700)
    with Daemon(path):
        result = as_nobody(public, str(path))
    assert result.returncode == 5 and b"you may not enter a folder" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_retry_waits_for_permission(public):
    """A socket that nolagd has just made is not open to its group yet."""
    path = os.path.join(public, "s")
    with Daemon(path):
        os.chmod(path, 0o600)
        result = as_nobody(public, path, "sub", "-t", TOPIC, "--retry", "-W", "0.5")
    assert result.returncode == 27 and result.stderr.count(b"permission denied") == 1


@pytest.mark.parametrize("make", [os.mkdir, lambda path: open(path, "w").close()])
def test_not_a_socket(path, make):
    make(path)
    result = nolag(path, "ping")
    assert result.returncode == 3 and result.stderr.decode().startswith(f"nolag: cannot connect to {path}: it is not a socket")


@pytest.mark.parametrize("args", [["ping"], ["status"], ["pub", "-t", TOPIC, "-m", "x"], ["sub", "-t", TOPIC]])
@pytest.mark.parametrize("line", [b'{"ok":false,"error":"what?"}\n', b"220 mail.example.org ESMTP\r\n", b"[1]\n"])
def test_something_else_listens_there(path, args, line):
    """Told as soon as it speaks, not when the time for an answer is over."""
    _, result = with_script(path, lambda peer: (peer.read_line(), peer.send(line), stuck(peer)), *args)
    assert result.returncode == 3 and result.stderr.decode() == f"nolag: what listens at {path} is not nolagd\n"


def test_full_listen_queue(path):
    """As a stopped daemon leaves it behind: connect() would wait without an end."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            if waiting[-1].connect_ex(str(path)) != 0:
                break
        result = nolag(path, "ping", "-W", "0.2")
        for s in waiting:
            s.close()
    assert result.returncode == 27 and b"does not take new connections" in result.stderr


@pytest.mark.parametrize("args", [["ping"], ["status"], ["sessions"], ["pub", "-t", TOPIC, "-m", "x"],
                                  ["raw", '{"type":"ping"}'], ["sub", "-t", TOPIC]])
def test_daemon_that_never_answers(path, args):
    began = time.monotonic()
    _, result = with_script(path, stuck, *args, "-W", "0.2")
    assert result.returncode == 27 and result.stdout == b"" and result.stderr.startswith(b"nolag: ")
    assert 0.2 <= time.monotonic() - began < PATIENCE


def test_stopped_daemon(path):
    """A process of its own, stopped by a signal: the kernel still takes connections for it."""
    code = ("import socket,os,signal,sys\ns=socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\n"
            "print(flush=True)\nos.kill(os.getpid(),signal.SIGSTOP)")
    process = subprocess.Popen(["/usr/bin/python3", "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        os.waitpid(process.pid, os.WUNTRACED)
        result = nolag(path, "pub", "-t", TOPIC, "-l", "-W", "0.2", stdin=b"x\n" * 100)
        assert result.returncode == 27 and b"did not answer in time" in result.stderr
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_answers_byte_by_byte(path):
    def script(peer):
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for request in peer:
            for byte in json.dumps(answer(request)).encode() + b"\r\n":
                peer.send(bytes([byte]))
    _, result = with_script(path, script, "status", "--json")
    assert result.returncode == 0 and json.loads(result.stdout)["status"] == "connected"


@pytest.mark.parametrize("args", [["ping"], ["pub", "-t", TOPIC, "-m", "x"], ["sub", "-t", TOPIC]])
def test_daemon_that_dies_before_the_answer(path, args):
    _, result = with_script(path, lambda peer: peer.read_line(), *args)
    assert result.returncode == 3 and b"nolagd closed the connection" in result.stderr


@pytest.mark.parametrize("args", [["ping"], ["pub", "-t", TOPIC, "-m", "x"], ["sub", "-t", TOPIC]])
def test_too_many_clients(path, args):
    def script(peer):
        peer.send(error("too_many_clients", code=43032))
        peer.sock.shutdown(socket.SHUT_WR)
        silent(peer)
    _, result = with_script(path, script, *args)
    assert result.returncode == 6 and b"too_many_clients: do something" in result.stderr


@pytest.mark.parametrize("args", [["status"], ["pub", "-t", TOPIC, "-m", "x"], ["sub", "-t", TOPIC, "-C1"]])
def test_session(path, args):
    def script(peer):
        for request in peer:
            peer.send(answer(request))
            if request["type"] == "subscribe":
                peer.message("x")
    d, result = with_script(path, script, *args, "--session", "ops")
    assert result.returncode == 0
    assert d.requests[0]["type"] == "auth" and d.requests[0]["session"] == "ops" and len(d.requests) == 2


@pytest.mark.parametrize("args", [["status"], ["pub", "-t", TOPIC, "-m", "x"], ["sub", "-t", TOPIC]])
@pytest.mark.parametrize("line, said", [
    ({"type": "auth", "success": False, "error": "access_denied", "hint": "h"}, b"access_denied: h"),
    (error("unknown_session", request="auth"), b"unknown_session: do something"),
    (error("not_permitted", request="auth"), b"not_permitted: do something"),
])
def test_session_refused(path, args, line, said):
    def script(peer):
        for request in peer:
            if request["type"] == "auth":
                peer.send({**line, "id": request["id"]})
            else:
                peer.send(error("not_authenticated", id=request["id"], request=request["type"]))
    _, result = with_script(path, script, *args, "--session", "x")
    assert result.returncode == 5
    assert result.stderr == b"nolag: auth: " + said + b"\n"


# status, sessions, ping

def test_status(daemon, path):
    result = nolag(path, "status")
    assert result.returncode == 0
    assert result.stdout.decode().splitlines() == [
        "session: default", "status: connected", "since: 2023-11-14T22:13:20Z", "actorTokenId: alice",
        "subscriptions: 2", "outbox: 0"]


def test_status_of_a_session(daemon, path):
    nolag(path, "status", "--session", "ops")
    assert daemon.requests[0]["session"] == "ops"


def test_status_json_is_the_line_as_it_came(path):
    line = b'{"type":"status","id":1, "status":"connected","big":18446744073709551615,"f":1.10}'
    _, result = with_script(path, lambda peer: (peer.read_line(), peer.send(line + b"\n")), "status", "--json")
    assert result.stdout == line + b"\n"


@pytest.mark.parametrize("status, flags, code", [
    ("connected", ["--exit-code"], 0), ("reconnecting", ["--exit-code"], 4), ("connecting", ["--exit-code"], 4),
    ("disconnected", ["--exit-code", "--json"], 4), ("disconnected", [], 0)])
def test_status_exit_code(path, status, flags, code):
    def script(peer):
        for request in peer:
            peer.send({"type": "status", "id": request["id"], "session": "default", "status": status,
                       "reason": "dns", "detail": "no such\nname"})
    _, result = with_script(path, script, "status", *flags)
    assert result.returncode == code
    if not flags:
        assert b"detail: no such name\n" in result.stdout


def test_sessions(daemon, path):
    lines = nolag(path, "sessions").stdout.decode().splitlines()
    assert [line.split() for line in lines] == [
        ["SESSION", "STATUS", "SINCE", "REASON"], ["default", "connected", "2023-11-14T22:13:20Z", "-"],
        ["ops", "reconnecting", "2023-11-14T22:13:21Z", "dns"]]
    assert json.loads(nolag(path, "sessions", "--json").stdout)["sessions"][1]["session"] == "ops"


def test_ping(daemon, path):
    assert nolag(path, "ping").stdout == b"pong\n"
    assert json.loads(nolag(path, "ping", "--json").stdout) == {"type": "pong", "id": 1}


# pub: what is sent

def raw_data(line):
    """The text of data in a request, which pub writes last."""
    return line[line.index(b'"data":') + 7:-1]


@pytest.mark.parametrize("text, data", [
    ("hello", b'"hello"'), ("", b'""'), ("42", b"42"), ("1.10", b"1.10"), ("true", b"true"), ("null", b"null"),
    ('"quoted"', b'"quoted"'), ("18446744073709551615", b"18446744073709551615"),
    ('{"b":1, "a":[1.0, -0.0]}', b'{"b":1,"a":[1.0,-0.0]}'), (' [ "a b" ,\n "\\n" ] ', b'["a b","\\n"]'),
    ('{"$bytes":"aGk="}', b'{"$bytes":"aGk="}'),
    ("1 2", b'"1 2"'), ("tr ue", b'"tr ue"'), ("007", b'"007"'), ("NaN", b'"NaN"'), ("1e999", b'"1e999"'),
    ("99999999999999999999999", b'"99999999999999999999999"'), ("'x'", b'"\'x\'"'), ("{a:1}", b'"{a:1}"'),
    ('1,"topic":"x/y/z"', b'"1,\\"topic\\":\\"x/y/z\\""'), ('1},"data":{"a":2', b'"1},\\"data\\":{\\"a\\":2"'),
    ("a\nb\t\"\\", b'"a\\nb\\t\\"\\\\"'), ("\u00e4\u20ac\U0001f600", '"\u00e4\u20ac\U0001f600"'.encode()),
])
def test_payload_of_a_text(daemon, path, text, data):
    assert nolag(path, "pub", "-t", TOPIC, "-m", text).returncode == 0
    assert raw_data(daemon.lines[0]) == data
    assert daemon.requests[0] == {"type": "publish", "id": 1, "topic": TOPIC, "data": json.loads(data)}


@pytest.mark.parametrize("flags, content, data", [
    (["--string"], b"42", "42"), (["--string"], b'{"a":1}\n', '{"a":1}\n'),
    (["--bytes"], b"hi", {"$bytes": "aGk="}), (["--bytes"], b"", {"$bytes": ""}), ([], b"", ""),
    ([], b"text\n", "text\n"), ([], b"42\n", 42), ([], b'{\n  "a": [\n    1\n  ]\n}\n', {"a": [1]}),
    ([], b"\xff", {"$bytes": "/w=="}), ([], b"a\0b", "a\0b"),
    ([], bytes(range(256)), {"$bytes": base64.b64encode(bytes(range(256))).decode()}),
    ([], b"\xef\xbb\xbf1", "\ufeff1"),
])
@pytest.mark.parametrize("source", ["-f", "-s"])
def test_payload_of_a_file(daemon, path, tmp_path, source, flags, content, data):
    file = tmp_path / "payload"
    file.write_bytes(content)
    args = ["-f", str(file)] if source == "-f" else ["-s"]
    assert nolag(path, "pub", "-t", TOPIC, *args, *flags, stdin=content).returncode == 0
    assert daemon.requests[0]["data"] == data


def test_big_payload(daemon, path, tmp_path):
    """The largest that a broker takes, at its largest as base64, through a socket that takes it in pieces."""
    content = os.urandom(900 * 1024)
    (tmp_path / "big").write_bytes(content)
    assert nolag(path, "pub", "-t", TOPIC, "-f", str(tmp_path / "big")).returncode == 0
    assert base64.b64decode(daemon.requests[0]["data"]["$bytes"]) == content


def test_string_that_is_not_utf8(daemon, path):
    result = nolag(path, "pub", "-t", TOPIC, "-s", "--string", stdin=b"\xff")
    assert result.returncode == 1 and b"not UTF-8" in result.stderr and not daemon.lines


def test_note_about_json_with_a_slip(daemon, path):
    args = ["pub", "-t", TOPIC, "-l"]
    result = nolag(path, *args, stdin=b'{"a":1,}\n{"a":2,}\n')
    assert result.returncode == 0 and result.stderr.count(b"looks like JSON but is not") == 1
    for flag in ("--quiet", "--string"):
        assert nolag(path, *args, flag, stdin=b'{"a":1,}\n').stderr == b""


def test_json_nested_too_deep(daemon, path):
    result = nolag(path, "pub", "-t", TOPIC, "-m", "[" * 5000 + "]" * 5000)
    assert result.returncode == 1 and b"nests too deep" in result.stderr and not daemon.lines


@pytest.mark.parametrize("flags, fields", [
    (["-n"], {"data": None}), (["-n", "-r"], {"data": None, "retain": True}),
    (["-m", "x", "-q", "0"], {"data": "x", "qos": 0}),
    (["-m", "x", "--filter", "a"], {"data": "x", "filter": "a"}),
    (["-m", "x", "--filter", "a", "--filter", "b"], {"data": "x", "filters": ["a", "b"]}),
    (["-m", "x", "--filter", '["a", "b"]'], {"data": "x", "filters": ["a", "b"]}),
    (["-m", "x", "--filter", ' [ "a", "b" ]'], {"data": "x", "filters": ["a", "b"]}),
])
def test_fields_of_a_publish(daemon, path, flags, fields):
    assert nolag(path, "pub", "-t", TOPIC, *flags).returncode == 0
    assert daemon.requests == [{"type": "publish", "id": 1, "topic": TOPIC, **fields}]


def test_several_topics(daemon, path):
    assert nolag(path, "pub", "-t", "a/b/c", "-t", "a/b/d", "-l", stdin=b"1\n2\n").returncode == 0
    assert [(r["id"], r["topic"], r["data"]) for r in daemon.requests] == [
        (1, "a/b/c", 1), (2, "a/b/d", 1), (3, "a/b/c", 2), (4, "a/b/d", 2)]


def test_pub_json_prints_the_answers(daemon, path):
    result = nolag(path, "pub", "-t", TOPIC, "-l", "--json", stdin=b"1\n2\n")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [1, 2]
    assert nolag(path, "pub", "-t", TOPIC, "-m", "x").stdout == b""


@pytest.mark.parametrize("name", ["nothing", "."])
def test_file_that_cannot_be_read(daemon, path, tmp_path, name):
    result = nolag(path, "pub", "-t", TOPIC, "-f", str(tmp_path / name))
    assert result.returncode == 1 and str(tmp_path / name) in result.stderr.decode() and not daemon.lines


def test_file_that_is_far_too_large(daemon, path):
    result = nolag(path, "pub", "-t", TOPIC, "-f", "/dev/zero")
    assert result.returncode == 1 and b"no broker takes" in result.stderr and not daemon.lines


# pub: lines

@pytest.mark.parametrize("stdin, data", [
    (b"x", ["x"]), (b"a\nb\n", ["a", "b"]), (b"a\r\nb", ["a", "b"]), (b"\n\na\n\n", ["a"]), (b"", []),
    (b"1\n{\"a\":2}\n\xff\n", [1, {"a": 2}, {"$bytes": "/w=="}])])
def test_lines(daemon, path, stdin, data):
    assert nolag(path, "pub", "-t", TOPIC, "-l", stdin=stdin).returncode == 0
    assert [r["data"] for r in daemon.requests] == data


def test_ten_thousand_lines_with_a_bounded_number_unanswered(path):
    def script(peer):
        window, first = [], True
        for request in peer:
            window.append(request)
            if len(window) < 64 and request["id"] < 10000:
                continue
            if first:
                assert peer.is_quiet(), "more than 64 are unanswered"
            first = False
            peer.send(*[answer(r) for r in reversed(window)])
            window = []
    d, result = with_script(path, script, "pub", "-t", TOPIC, "-l",
                            stdin=b"".join(b"%d\n" % i for i in range(10000)))
    assert result.returncode == 0, result.stderr
    assert [r["data"] for r in d.requests] == list(range(10000))


def test_a_line_is_published_before_the_next_one_comes(daemon, path):
    process = start(path, "pub", "-t", TOPIC, "-l", stdin=subprocess.PIPE)
    for i in range(3):
        process.stdin.write(b"line\n")
        process.stdin.flush()
        daemon.wait_for(i + 1)
    assert finish(process)[0] == 0


def test_lines_wait_for_their_input_longer_than_for_an_answer(daemon, path):
    process = start(path, "pub", "-t", TOPIC, "-l", "-W", "0.1", stdin=subprocess.PIPE)
    process.stdin.write(b"one\n")
    process.stdin.flush()
    daemon.wait_for(1)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.4)
    assert finish(process) == (0, b"", b"")


def test_the_wait_for_an_answer_begins_with_the_question(daemon, path):
    process = start(path, "pub", "-t", TOPIC, "-l", "-W", "1", stdin=subprocess.PIPE)
    for i in range(2):
        process.stdin.write(b"line\n")
        process.stdin.flush()
        daemon.wait_for(i + 1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.1 - i)
    assert finish(process)[0] == 0 and len(daemon.lines) == 2, "it asked why there is no answer"


@pytest.mark.parametrize("args", [["raw"], ["pub", "-t", TOPIC, "-l"]])
def test_a_daemon_that_does_not_read(path, args):
    """What it does not take is left with whoever writes it, not piled up."""
    with Daemon(path, lambda peer: peer.daemon.closing.wait()):
        process = start(path, *args, stdin=subprocess.PIPE)
        os.set_blocking(process.stdin.fileno(), False)
        taken, block = 0, b"x" * 99_999 + b"\n"
        while taken < 16 << 20 and select.select([], [process.stdin], [], 0.3)[1]:
            taken += os.write(process.stdin.fileno(), block[taken % len(block):])
        process.kill()
        finish(process)
    assert 1 << 20 <= taken < 4 << 20


def test_the_last_words_of_a_daemon_that_stopped_reading(path, tmp_path):
    """Writing fails then, which must neither kill the command nor keep it from reading."""
    def script(peer):
        peer.sock.shutdown(socket.SHUT_RD)
        peer.is_quiet(0.1)
        peer.send(error("too_many_clients"))
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    _, result = with_script(path, script, "pub", "-t", TOPIC, "-f", str(tmp_path / "big"))
    assert result.returncode == 6 and b"too_many_clients" in result.stderr


def test_lines_of_which_some_fail(path):
    def script(peer):
        for request in peer:
            if request["data"] in (2, 4):
                name = {2: "outbox_full", 4: "unknown_topic"}[request["data"]]
                peer.send(error(name, request="publish", id=request["id"], topic=TOPIC))
            else:
                peer.send(answer(request))
    d, result = with_script(path, script, "pub", "-t", TOPIC, "-l", stdin=b"1\n\n2\n3\n\r\n4\n5\n")
    assert result.returncode == 6 and len(d.requests) == 5
    assert result.stderr.decode().splitlines() == [
        f"nolag: line 3: {TOPIC}: outbox_full: do something", f"nolag: line 6: {TOPIC}: unknown_topic: do something"]


def test_line_that_nolagd_cannot_read(path):
    """Its answer has no id, and is waited for all the same."""
    def script(peer):
        for request in peer:
            peer.send(error("line_too_long", code=43001) if request["data"] == 1 else answer(request))
    _, result = with_script(path, script, "pub", "-t", TOPIC, "-l", "-W", "5", stdin=b"0\n1\n2\n")
    assert result.returncode == 1 and result.stderr.startswith(b"nolag: line_too_long: longer than nolagd takes; see line_limit")


def test_daemon_that_dies_on_the_way(path):
    def script(peer):
        for request in peer:
            if request["id"] == 100:
                return
            peer.send(answer(request))
    _, result = with_script(path, script, "pub", "-t", TOPIC, "-l", stdin=b"x\n" * 1000)
    assert result.returncode == 3 and re.search(rb"the last \d+ messages is not known", result.stderr)


def test_daemon_that_dies_while_there_is_nothing_to_publish(path):
    with Daemon(path, lambda peer: None):
        process = start(path, "pub", "-t", TOPIC, "-l", stdin=subprocess.PIPE)
        assert process.wait(PATIENCE) == 3
        assert b"before the end of the input" in finish(process)[2]


@pytest.mark.parametrize("name, code", [
    ("unknown_topic", 1), ("message_too_large", 1), ("bad_topic", 1), ("something_new", 1), ("timeout", 4),
    ("shutting_down", 3), ("access_denied", 5), ("not_authenticated", 5), ("not_authorized", 5),
    ("not_permitted", 5), ("rate_limit_exceeded", 6), ("monthly_quota_exceeded", 6), ("outbox_full", 6),
    ("limit_reached", 6)])
def test_exit_code_of_an_error(path, name, code):
    _, result = with_script(path, refusing(name, topic=TOPIC), "pub", "-t", TOPIC, "-m", "x")
    assert result.returncode == code
    assert result.stderr.decode() == f"nolag: {TOPIC}: {name}: do something\n"


@pytest.mark.parametrize("name, fields, said", [
    ("message_too_large", {"maxSizeBytes": 921600}, b"do something (at most 921600 bytes)"),
    ("outbox_full", {"retryAfterMs": 250}, b"do something (in 250 ms)"),
    ("not_supported", {}, b"this version of nolagd does not do this")])
def test_error_tells_what_its_hint_only_names(path, name, fields, said):
    _, result = with_script(path, refusing(name, **fields), "pub", "-t", TOPIC, "-m", "x")
    assert result.stderr == b"nolag: " + name.encode() + b": " + said + b"\n"


def test_error_names_the_field(path):
    _, result = with_script(path, refusing("bad_field", field="qos"), "pub", "-t", TOPIC, "-m", "x")
    assert result.stderr == b"nolag: bad_field qos: do something\n"


@pytest.mark.parametrize("status, code, said", [
    ({"status": "reconnecting", "reason": "dns", "detail": "no such name"}, 4,
     b"session default is reconnecting (dns: no such name)"),
    ({"status": "connected"}, 27, b"no answer from the broker in time")])
def test_no_outcome_in_time(path, status, code, said):
    def script(peer):
        for request in peer:
            if request["type"] == "status":
                peer.send({"type": "status", "id": request["id"], "session": "default", **status})
    _, result = with_script(path, script, "pub", "-t", TOPIC, "-m", "x", "-W", "0.1")
    assert result.returncode == code and said in result.stderr


# pub --jsonl

def test_jsonl(daemon, path):
    lines = [b'{"topic":"a/b/c","data":1.10}', b' { "data" : {"x": [1]}, "filter":"f", "qos":0, "retain":true }',
             b'{"topic":"a/b/c","data":null,"filters":["a","b"],"type":"message","id":9,"msgId":"m","from":"bob"}',
             b'{"topic":"a/b/c"}']
    result = nolag(path, "pub", "--jsonl", "-t", TOPIC, "-q", "2", "--filter", "dflt", stdin=b"\n".join(lines))
    assert result.returncode == 0, result.stderr
    assert raw_data(daemon.lines[0]).startswith(b"1.10")
    assert daemon.requests == [
        {"type": "publish", "id": 1, "topic": "a/b/c", "data": 1.1, "filter": "dflt", "qos": 2},
        {"type": "publish", "id": 2, "topic": TOPIC, "data": {"x": [1]}, "filter": "f", "qos": 0, "retain": True},
        {"type": "publish", "id": 3, "topic": "a/b/c", "data": None, "filters": ["a", "b"], "qos": 2},
        {"type": "publish", "id": 4, "topic": "a/b/c", "filter": "dflt", "qos": 2}]


def test_jsonl_with_bad_lines(daemon, path):
    result = nolag(path, "pub", "--jsonl", "-t", TOPIC, stdin=b'nonsense\n\n{"data":1}\n[1]\n{"data":2} x\n')
    assert result.returncode == 1 and [(r["id"], r["data"]) for r in daemon.requests] == [(3, 1)]
    assert result.stderr.decode().splitlines() == [f"nolag: line {i}: not one JSON object" for i in (1, 4, 5)]


def test_the_line_of_a_publish_to_several_topics(path):
    def script(peer):
        for request in peer:
            peer.send(error("unknown_topic", id=request["id"]) if request["data"] == "x" and request["topic"] == "a/b/d"
                      else answer(request))
    _, result = with_script(path, script, "pub", "-l", "-t", "a/b/c", "-t", "a/b/d", stdin=b"1\n\n\nx\n2\n")
    assert result.returncode == 1 and result.stderr == b"nolag: line 4: unknown_topic: do something\n"


# sub: what is asked

@pytest.mark.parametrize("flags, fields", [
    ([], {}), (["-q", "2"], {"qos": 2}), (["--filter", "a"], {"filters": ["a"]}),
    (["--filter", "a", "--filter", '["b", "c"]'], {"filters": ["a", ["b", "c"]]}),
    (["--filter", '[ "a","b" ]'], {"filters": [["a", "b"]]}),
    (["--group", "workers"], {"loadBalance": True, "loadBalanceGroup": "workers"}),
    (["--group", "workers", "--ack", "manual", "--prefetch", "5"],
     {"loadBalance": True, "loadBalanceGroup": "workers", "ack": "manual", "prefetch": 5})])
def test_fields_of_a_subscribe(path, flags, fields):
    def script(peer):
        next(iter(peer))
        peer.message("x")
        silent(peer)
    d, result = with_script(path, script, "sub", "-t", TOPIC, "-C", "1", *flags)
    assert result.returncode == 0
    assert d.requests == [{"type": "subscribe", "id": 1, "topic": TOPIC, **fields}]


def test_acknowledges_what_is_written_out(path):
    def script(peer):
        requests = iter(peer)
        peer.send(answer(next(requests)))
        for n in (1, 2, 3):
            peer.send({"type": "message", "topic": TOPIC, "data": n, "ackId": 10 + n})
        next(requests)
        last = next(requests)
        peer.send({"type": "acknowledged", "id": last["id"]})
        silent(peer)
    d, result = with_script(path, script, "sub", "-t", TOPIC, "--ack", "manual", "-C", "2")
    assert result.returncode == 0 and result.stdout == b"1\n2\n"
    assert d.requests[1:] == [{"type": "ack", "ackId": 11}, {"type": "ack", "ackId": 12, "id": "last"}]


@pytest.mark.parametrize("flags, why", [
    (["--ack", "yes"], b"--ack is manual or auto"), (["--prefetch", "2"], b"--prefetch needs --ack manual"),
    (["--ack", "auto", "--prefetch", "2"], b"--prefetch needs --ack manual"),
    (["--ack", "manual", "--prefetch", "0"], b"from 1 to 10000")])
def test_wrong_acks(path, flags, why):
    result = nolag(path, "sub", "-t", TOPIC, *flags)
    assert result.returncode == 2 and why in result.stderr


def test_filters_go_with_every_topic(path):
    d, _ = with_script(path, serve, "sub", "-t", "a/b/c", "-t", "*", "--filter", "f", "-W", "0.1")
    assert [(r["id"], r["topic"], r["filters"]) for r in d.requests] == [(1, "a/b/c", ["f"]), (2, "*", ["f"])]


# sub: what is shown

def sending(*lines, then=silent):
    """A daemon that confirms a subscription, sends these messages, and goes on as told."""
    def script(peer):
        peer.send(answer(next(iter(peer))))
        for line in lines:
            peer.send(line)
        then(peer)
    return script


def message(data, **fields):
    return {"type": "message", "topic": TOPIC, "data": data, **fields}


@pytest.mark.parametrize("data, shown", [
    (b'"text"', b"text"), (b'""', b""), (b'"a\\nb\\u00e4\\ud83d\\ude00\\"\\\\\\/"', 'a\nb\u00e4\U0001f600"\\/'.encode()),
    (b'"\\ud800x"', "\ufffdx".encode()), (b'"\\u0000"', b"\0"), (b"42", b"42"), (b"1.10", b"1.10"), (b"null", b"null"),
    (b"18446744073709551615", b"18446744073709551615"), (b'{"b":1,"a":"x\\n"}', b'{"b":1,"a":"x\\n"}'),
    (b'{"$bytes":"aGk="}', b'{"$bytes":"aGk="}')])
def test_payload_alone(path, data, shown):
    line = b'{"type":"message","topic":"a/b/c","x":[{"y":"]}"}],"data":' + data + b',"msgId":"m"}\n'
    _, result = with_script(path, sending(line), "sub", "-t", TOPIC, "-C", "1")
    assert (result.returncode, result.stdout, result.stderr) == (0, shown + b"\n", b"")


EVENT = message({"a": 1}, filter="region:us", msgId="m-1", **{"from": "bob"})


@pytest.mark.parametrize("flags, shown", [
    (["-v"], TOPIC + ' {"a":1}\n'), (["-N"], '{"a":1}'), (["-F", "%t|%p|%f|%i|%F|%l|%%"], TOPIC + '|{"a":1}|region:us|m-1|bob|7|%\n'),
    (["-F", r"\t%x\n\\q"], "\t" + b'{"a":1}'.hex() + "\n\\q\n"), (["-N", "-F", r"%p\0"], '{"a":1}\0')])
def test_formats(path, flags, shown):
    line = json.dumps(EVENT, separators=(",", ":")).encode() + b"\n"
    for args in (flags, ["--format" if f == "-F" else "--verbose" if f == "-v" else f for f in flags]):
        _, result = with_script(path, sending(line), "sub", "-t", TOPIC, "-C", "1", *args)
        assert result.stdout.decode() == shown


@pytest.mark.parametrize("flags", [["--json"], ["-F", "%j"]])
def test_whole_event(path, flags):
    line = b'{"type":"message", "topic":"a/b/c","data":1.10,"new":18446744073709551615}\n'
    _, result = with_script(path, sending(line), "sub", "-t", TOPIC, "-C", "1", *flags)
    assert result.stdout == line


def test_formats_of_time(path):
    before = time.time()
    _, result = with_script(path, sending(EVENT), "sub", "-t", TOPIC, "-C", "1", "-F", "%U %I")
    unix, iso = result.stdout.decode().split()
    assert before <= float(unix) <= time.time() and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", iso)


def test_format_of_several_filters_and_of_nothing(path):
    _, result = with_script(path, sending(message(1, filters=["a", "b"]), message(2)), "sub", "-t", TOPIC, "-C", "2",
                            "-F", "<%f%i%F>")
    assert re.fullmatch(rb'<\["a", ?"b"\]>\n<>\n', result.stdout)


@pytest.mark.parametrize("data, shown", [
    ({"$bytes": "AP8="}, b"\x00\xff"), ({"$str": "/w=="}, b"\xff"), ({"$bytes": ""}, b""), ("text", b"text"),
    ({"$bytes": "AP8=", "x": 1}, b'{"$bytes": "AP8=", "x": 1}'), ({"$bytes": "!"}, b'{"$bytes": "!"}')])
def test_bytes_shown_as_bytes(path, data, shown):
    _, result = with_script(path, sending(message(data)), "sub", "-t", TOPIC, "-C", "1", "-N", "--bytes")
    assert result.stdout == shown


def test_file_there_and_back(path, tmp_path):
    """What pub sends of a file is what sub --bytes writes into one."""
    content = os.urandom(200000)
    (tmp_path / "file").write_bytes(content)
    sent = []
    with Daemon(path, lambda peer: (sent.append(next(iter(peer))), peer.send(answer(sent[0])), silent(peer))):
        nolag(path, "pub", "-t", TOPIC, "-f", str(tmp_path / "file"))
    _, result = with_script(path, sending(message(sent[0]["data"])), "sub", "-t", TOPIC, "-C1", "-N", "--bytes")
    assert result.stdout == content


def test_count_is_exact(path):
    _, result = with_script(path, sending(*[message(i) for i in range(1000)]), "sub", "-t", TOPIC, "-C", "700")
    assert result.returncode == 0 and result.stdout.split() == [b"%d" % i for i in range(700)]


def test_big_message(path):
    text = "\u0001" * 900_000  # six bytes each in JSON
    _, result = with_script(path, sending(message(text)), "sub", "-t", TOPIC, "-C", "1")
    assert result.stdout.decode() == text + "\n"


def test_only_messages_are_shown(path):
    others = [{"type": "hydration", "data": 1}, {"type": "newEvent", "data": 2}, {"nonsense": 3}, b"nonsense\n", b"\n"]
    _, result = with_script(path, sending(*others, message(4)), "sub", "-t", TOPIC, "-C", "1")
    assert (result.stdout, result.stderr) == (b"4\n", b"")


def test_a_pipe_gets_each_message_at_once(path):
    go = threading.Semaphore(0)

    def then(peer):
        for i in range(3):
            assert go.acquire(timeout=PATIENCE)
            peer.message(i)
        silent(peer)
    with Daemon(path, sending(then=then)) as d:
        process = start(path, "sub", "-t", TOPIC)
        d.wait_for(1)
        for i in range(3):
            go.release()
            assert select.select([process.stdout], [], [], PATIENCE)[0]
            assert os.read(process.stdout.fileno(), 100) == b"%d\n" % i
        process.kill()
        finish(process)


# sub: how it ends

@pytest.mark.parametrize("messages", [[], [message(1)]])
def test_timeout(path, messages):
    began = time.monotonic()
    _, result = with_script(path, sending(*messages), "sub", "-t", TOPIC, "-W", "0.25")
    assert result.returncode == 27 and result.stderr == b"nolag: timed out after 0.25 s\n"
    assert 0.25 <= time.monotonic() - began < PATIENCE
    assert result.stdout == b"1\n" * len(messages)


def test_timeout_quiet(path):
    _, result = with_script(path, serve, "sub", "-t", TOPIC, "-W", "0.05", "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (27, b"", b"")


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("more", [0, 100000])
def test_head_goes_away(path, more, ignored):
    """With more messages to come and with none, and where SIGPIPE was ignored by whoever started it."""
    def then(peer):
        for _ in range(more // 1000):
            peer.send(b"".join(json.dumps(message(i)).encode() + b"\n" for i in range(1000)))
        silent(peer)
    trap = 'trap "" PIPE; ' if ignored else ""
    with Daemon(path, sending(message("first"), then=then)):
        result = subprocess.run(["bash", "-c", f'{trap}"$0" sub -t {TOPIC} | head -n 1; echo "${{PIPESTATUS[0]}}"', NOLAG],
                                capture_output=True, env=environment(path), timeout=PATIENCE)
    assert result.stdout == b"first\n141\n" and result.stderr == b""


@pytest.mark.parametrize("verb", ["ping", "--help"])
def test_nobody_reads_the_output(daemon, path, verb):
    """Where SIGPIPE is ignored, as Python does: a message about a broken pipe would be noise."""
    reading, writing = os.pipe()
    os.close(reading)
    process = start(path, verb, stdout=writing, restore_signals=False)
    os.close(writing)
    assert finish(process)[::2] == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(path, which):
    with Daemon(path, sending(message("x"))):
        process = start(path, "sub", "-t", TOPIC)
        assert process.stdout.readline() == b"x\n"
        process.send_signal(which)
        assert finish(process) == (-which, b"", b"")  # 130 and 143 in a shell


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("verb", [f"sub -t {TOPIC} -C 1", "ping", "ping --json", "--help", "raw '{\"type\":\"ping\"}'"])
def test_output_that_cannot_be_written(path, verb, redirection):
    def script(peer):
        for request in peer:
            peer.send(answer(request))
            if request["type"] == "subscribe":
                peer.message("x")
    with Daemon(path, script):
        result = subprocess.run(["sh", "-c", f'"$0" {verb} {redirection}', NOLAG], capture_output=True,
                                env=environment(path), timeout=PATIENCE)
    assert result.returncode == 1 and b"cannot write to stdout" in result.stderr


@pytest.mark.parametrize("name, code", [("not_permitted", 5), ("bad_topic", 1), ("limit_reached", 6), ("timeout", 4),
                                        ("bad_filter", 1), ("wish_conflict", 1)])
def test_refused_subscription(path, name, code):
    def script(peer):
        for request in peer:
            peer.send(error(name, request="subscribe", id=request["id"], topic=request["topic"])
                      if request["topic"] == "a/b/d" else answer(request))
    _, result = with_script(path, script, "sub", "-t", "a/b/c", "-t", "a/b/d")
    assert result.returncode == code and result.stderr == f"nolag: a/b/d: {name}: do something\n".encode()


def test_lost_subscriptions(path):
    """It goes on while there is one left."""
    lost = [error("not_authorized", topic="a/b/c"), {"type": "message", "topic": "a/b/d", "data": "still"},
            error("not_authorized", topic="a/b/d")]

    def script(peer):
        requests = iter(peer)
        peer.send(answer(next(requests)), answer(next(requests)), *lost)
        silent(peer)
    _, result = with_script(path, script, "sub", "-t", "a/b/c", "-t", "a/b/d")
    assert result.returncode == 5 and result.stdout == b"still\n" and result.stderr.count(b"not_authorized") == 2


@pytest.mark.parametrize("last, code, said", [
    (error("slow_consumer", code=43060), 6, b"slow_consumer"), ({"type": "shutdown"}, 3, b"nolagd is stopping"),
    (b"", 3, b"nolagd closed the connection"), (b'{"type":"message","topic":"half', 3, b"closed the connection")])
def test_daemon_goes_away(path, last, code, said):
    _, result = with_script(path, sending(message(1), last, then=lambda peer: None), "sub", "-t", TOPIC)
    assert result.returncode == code and result.stdout == b"1\n"
    assert said in result.stderr and result.stderr.count(b"\n") == 1


def test_retry(path):
    """Over a restart of the daemon, from before its first start; -C counts on."""
    process = start(path, "sub", "-t", TOPIC, "--session", "ops", "--retry", "-C", "3")
    assert select.select([process.stderr], [], [], PATIENCE)[0]
    for i in range(3):
        def script(peer):
            for request in peer:
                peer.send(answer(request))
                if request["type"] == "subscribe":
                    peer.message(i)
                    return
        with Daemon(path, script) as d:
            assert process.stdout.readline() == b"%d\n" % i
            d.wait_for(2)
    code, out, err = finish(process)
    assert code == 0 and out == b"" and b"cannot connect" in err


def test_retry_slows_down(path):
    """After a connection that worked, too."""
    def script(peer):
        peer.daemon.connections = getattr(peer.daemon, "connections", 0) + 1
        if peer.daemon.connections == 1:
            peer.send(answer(next(iter(peer))))
    d, result = with_script(path, script, "sub", "-t", TOPIC, "--retry", "-W", "1.4")
    assert result.returncode == 27 and 2 <= d.connections <= 6, "ten times a second"


def test_retry_ends_with_the_timeout(path):
    assert nolag(path, "sub", "-t", TOPIC, "--retry", "-W", "0.3").returncode == 27


def test_retry_does_not_hide_other_errors(path):
    _, result = with_script(path, refusing("not_permitted"), "sub", "-t", TOPIC, "--retry")
    assert result.returncode == 5


# sub: what is told besides

def test_pending(path):
    def script(peer):
        requests = iter(peer)
        peer.send({**answer(next(requests)), "pending": True})
        assert next(requests)["type"] == "status"
        peer.send({"type": "status", "id": "status", "session": "default", "status": "reconnecting", "reason": "tls",
                   "detail": "certificate has expired"})
        peer.message("late")
        silent(peer)
    _, result = with_script(path, script, "sub", "-t", TOPIC, "-C", "1")
    assert result.stdout == b"late\n"
    assert result.stderr == b"nolag: session default is reconnecting (tls: certificate has expired); waiting\n"


def test_pending_quiet(path):
    def script(peer):
        peer.send({**answer(next(iter(peer))), "pending": True})
        peer.message("late")
        silent(peer)
    d, result = with_script(path, script, "sub", "-t", TOPIC, "-C", "1", "--quiet")
    assert (result.stdout, result.stderr) == (b"late\n", b"")


REFUSED = [{"status": "disconnected", "reason": "access_denied"}, {"status": "disconnected", "reason": "revoked"}]


def offline(state, type_="status"):
    """While the session is down subscriptions are pending and publishes wait."""
    def script(peer):
        for request in peer:
            if request["type"] == "status":
                peer.send({"type": type_, "id": request["id"], "session": "default", **state})
            elif request["type"] == "subscribe":
                peer.send({**answer(request), "pending": True})
                if request["topic"] == "a/b/z":
                    peer.message("late")
    return script


@pytest.mark.parametrize("flags", [[], ["--quiet"], ["-E"]])
@pytest.mark.parametrize("state", REFUSED)
def test_sub_does_not_wait_for_a_refused_token(path, state, flags):
    _, result = with_script(path, offline(state), "sub", "-t", TOPIC, *flags)
    assert result.returncode == 5
    assert result.stderr.decode() == f"nolag: session default is disconnected ({state['reason']})\n"


@pytest.mark.parametrize("state", REFUSED)
def test_sub_ends_when_the_token_is_refused(path, state):
    event = {"type": "disconnect", "session": "default", "reason": state["reason"]}
    _, result = with_script(path, sending(message(1), event), "sub", "-t", TOPIC)
    assert (result.returncode, result.stdout) == (5, b"1\n")
    assert result.stderr.decode() == f"nolag: session default is disconnected ({state['reason']})\n"
    _, result = with_script(path, sending(event, message(1)), "sub", "-t", TOPIC, "--retry", "-C", "1")
    assert (result.returncode, result.stdout) == (0, b"1\n")


def test_sub_with_retry_waits_for_a_refused_token(path):
    _, result = with_script(path, offline(REFUSED[0]), "sub", "-t", TOPIC, "--retry", "-W", "0.3")
    assert result.returncode == 27
    assert b"session default is disconnected (access_denied); waiting\n" in result.stderr


@pytest.mark.parametrize("state", REFUSED)
def test_pub_does_not_wait_for_a_refused_token(path, state):
    began = time.monotonic()
    _, result = with_script(path, offline(state), "pub", "-t", TOPIC, "-m", "x", "--quiet")
    assert result.returncode == 5 and time.monotonic() - began < PATIENCE
    assert f"({state['reason']}); nothing is sent before the broker takes the token" in result.stderr.decode()


def test_pub_tells_that_it_waits(path):
    """Before its time is over, and once."""
    states = offline({"status": "reconnecting", "reason": "dns"})
    with Daemon(path, states):
        process = start(path, "pub", "-t", TOPIC, "-m", "x", "-W", "3")
        assert process.stderr.readline() == b"nolag: session default is reconnecting (dns); waiting\n"
        assert process.poll() is None
        code, _, err = finish(process)
    assert code == 4 and err == (b"nolag: session default is reconnecting (dns); what waits is sent when it is back, "
                                 b"if that is within ttl (nolagd.conf)\n")


def test_pub_counts_answers_to_publishes_only(path):
    """An error that answers the question for the status is no outcome."""
    def script(peer):
        requests = iter(peer)
        publish, status = next(requests), next(requests)
        assert (publish["type"], status["type"]) == ("publish", "status")
        peer.send(error("limit_reached", id=status["id"]))
        assert peer.is_quiet(0.2), "it has ended"
        peer.send(error("unknown_topic", id=publish["id"]))
        silent(peer)
    _, result = with_script(path, script, "pub", "-t", TOPIC, "-m", "x")
    assert result.returncode == 1 and result.stderr == b"nolag: unknown_topic: do something\n"


# sub -E

def test_only_subscribe(daemon, path):
    result = nolag(path, "sub", "-t", "a/b/c", "-t", "a/b/d", "-E", "-d")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"nolag: subscribed\n")
    assert [r["topic"] for r in daemon.requests] == ["a/b/c", "a/b/d"]


def test_only_subscribe_waits_for_the_broker(path):
    """A subscription that is pending is not made yet."""
    def script(peer):
        requests = iter(peer)
        peer.send({**answer(next(requests)), "pending": True}, answer(next(requests)))
        status = next(requests)
        peer.send({"type": "status", "id": status["id"], "session": "default", "status": "connecting"})
        assert peer.is_quiet(0.2)
        peer.send({"type": "connect", "session": "default"})
        assert peer.read_line() is None, "it has ended"
    _, result = with_script(path, script, "sub", "-t", "a/b/c", "-t", "a/b/d", "-E", "-d")
    assert result.returncode == 0
    assert result.stderr == (b"nolag: session default is connecting; waiting\nnolag: session default is connected\n"
                             b"nolag: subscribed\n")


def test_only_subscribe_when_one_is_refused_later(path):
    def script(peer):
        requests = iter(peer)
        peer.send({**answer(next(requests)), "pending": True}, answer(next(requests)),
                  error("not_authorized", topic="a/b/c"), {"type": "connect", "session": "default"})
        silent(peer)
    _, result = with_script(path, script, "sub", "-t", "a/b/c", "-t", "a/b/d", "-E", "--quiet")
    assert result.returncode == 5


def test_only_subscribe_with_the_real_daemon(kraken):
    kraken.stop_listening()
    with RealDaemon({"default": alice(kraken.url)}) as real:
        process = start(real.socket, "sub", "-t", TOPIC, "-E")
        assert b"waiting" in process.stderr.readline()
        kraken.listen()
        assert finish(process) == (0, b"", b"")


@pytest.mark.parametrize("verb", [["sub"], ["pub", "-m", "x"]])
@pytest.mark.parametrize("known", [False, True])
def test_a_token_that_the_real_daemon_has_refused(kraken, verb, known):
    """Whether that is known already, or comes out while the command waits."""
    kraken.refuse_auth(error="access_denied", token="tok-alice", count=None)
    if not known:
        kraken.delay(type="auth", ms=1200)
    with RealDaemon({"default": alice(kraken.url)}, {"drain_timeout": "0"}) as real:
        if known:
            real.wait_status("disconnected", reason="access_denied")
        result = nolag(real.socket, *verb, "-t", TOPIC)
    assert result.returncode == 5 and result.stdout == b""
    assert "access_denied" in result.stderr.decode().splitlines()[-1]


def test_refused_once_is_not_refused_for_ever(path):
    """With --retry each connection begins anew: what the broker took back once may be there again."""
    def script(peer):
        peer.daemon.connections = getattr(peer.daemon, "connections", 0) + 1
        requests = iter(peer)
        peer.send(answer(next(requests)), answer(next(requests)))
        lost = "a/b/c" if peer.daemon.connections == 1 else "a/b/d"
        peer.send(error("not_authorized", topic=lost))
        if peer.daemon.connections == 2:
            peer.message("still", topic="a/b/c")
            silent(peer)
    d, result = with_script(path, script, "sub", "-t", "a/b/c", "-t", "a/b/d", "--retry", "-C", "1")
    assert (result.returncode, result.stdout) == (0, b"still\n")


CONNECTION = [{"type": "disconnect", "session": "default", "reason": "closed", "detail": "bye"},
              {"type": "reconnect", "session": "default"}, message(1)]


@pytest.mark.parametrize("flags, told", [
    ([], b""), (["-d"], b"nolag: subscribed\nnolag: session default is disconnected (closed: bye); waiting\n"
                        b"nolag: session default is connected\n")])
def test_connection_events(path, flags, told):
    _, result = with_script(path, sending(*CONNECTION), "sub", "-t", TOPIC, "-C", "1", *flags)
    assert (result.stdout, result.stderr) == (b"1\n", told)


def test_dropped(path):
    dropped = {"type": "dropped", "count": 12, "topic": TOPIC}
    _, result = with_script(path, sending(dropped, message(1)), "sub", "-t", TOPIC, "-C", "1")
    assert result.returncode == 0 and b"12 messages were left out" in result.stderr
    _, result = with_script(path, sending(dropped, message(1)), "sub", "-t", TOPIC, "-C", "1", "--quiet")
    assert result.stderr == b""


def on_terminal(path, *args):
    """Both outputs on a terminal: what it shows, until the command has ended."""
    master, slave = pty.openpty()
    process = start(path, *args, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while select.select([master], [], [], PATIENCE)[0]:
            shown += os.read(master, 4096)
    except OSError:  # the other side is closed
        pass
    os.close(master)
    assert process.wait(PATIENCE) == 0
    return shown.decode()


def test_terminal(path):
    """Connection events are told; what others sent cannot drive the terminal, what -F asks for can."""
    with Daemon(path, sending(*CONNECTION[:2], message("a\x1b[2J\x9b\x7f\u00e4\tb"))):
        shown = on_terminal(path, "sub", "-t", TOPIC, "-C", "1", "-F", r"\e[1m%p\e[0m")
    assert "session default is connected" in shown
    assert "\x1b[1ma?[2J???\u00e4" in shown and "\x1b[0m" in shown and "\x1b[2J" not in shown


def test_errors_cannot_drive_a_terminal(path):
    _, result = with_script(path, refusing("odd\x1b[2J\nname"), "pub", "-t", TOPIC, "-m", "x")
    assert result.stderr == b"nolag: odd [2J name: do something\n"


# raw

def test_raw_arguments(daemon, path):
    result = nolag(path, "raw", '{"type":"ping"}', '{"type":"ping","id":"a"}', stdin=b"not read")
    assert result.returncode == 0
    assert daemon.lines == [b'{"type":"ping"}', b'{"type":"ping","id":"a"}']
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"type": "pong"}, {"type": "pong", "id": "a"}]


@pytest.mark.parametrize("stdin", [b'{"type":"ping"}\n', b'{"type":"ping"}'])
def test_raw_stdin(daemon, path, stdin):
    result = nolag(path, "raw", stdin=stdin)
    assert (result.returncode, result.stdout) == (0, b'{"type": "pong"}\n')


def test_raw_waits_for_late_answers(path):
    """Longer than the half second after which socat leaves."""
    def script(peer):
        silent(peer)
        peer.is_quiet(0.7)  # nothing comes any more: the sending side is closed
        threading.Event().wait(0.7)
        peer.send({"type": "pong"})
    _, result = with_script(path, script, "raw", stdin=b'{"type":"ping"}\n')
    assert (result.returncode, result.stdout) == (0, b'{"type": "pong"}\n')


def test_raw_keeps_receiving(path):
    def script(peer):
        silent(peer)
        for i in range(3):
            peer.message(i)
    _, result = with_script(path, script, "raw", '{"type":"subscribe","topic":"a/b/c"}')
    assert result.returncode == 0 and result.stdout.count(b"\n") == 3


def test_raw_is_byte_exact_both_ways_at_once(path):
    """More than the socket holds, in both directions: neither side may wait for the other."""
    there, back = os.urandom(3 << 20), os.urandom(3 << 20)
    got = []

    def script(peer):
        def read():
            data = bytearray()
            while True:
                part = peer.sock.recv(1 << 16)
                if not part:
                    break
                data += part
            got.append(bytes(data))
        reader = threading.Thread(target=read)
        reader.start()
        peer.send(back)
        reader.join()
    _, result = with_script(path, script, "raw", stdin=there)
    assert result.returncode == 0 and result.stdout == back and got == [there]


def test_raw_is_interactive(daemon, path):
    process = start(path, "raw", stdin=subprocess.PIPE)
    for _ in range(3):
        process.stdin.write(b'{"type":"ping"}\n')
        process.stdin.flush()
        assert process.stdout.readline() == b'{"type": "pong"}\n'
    assert finish(process)[0] == 0


def test_raw_session(daemon, path):
    """The answer to the auth, which the user has not written, is not shown."""
    result = nolag(path, "raw", "--session", "ops", '{"type":"ping"}')
    assert (result.returncode, result.stdout) == (0, b'{"type": "pong"}\n')
    assert [r["type"] for r in daemon.requests] == ["auth", "ping"] and daemon.requests[0]["session"] == "ops"


def test_raw_session_in_pieces(path):
    def script(peer):
        silent(peer)
        for byte in b'{"type":"auth","id":"auth","success":true}\n{"type":"pong"}\n\n x':
            peer.send(bytes([byte]))
    _, result = with_script(path, script, "raw", "--session", "ops", '{"type":"ping"}')
    assert (result.returncode, result.stdout) == (0, b'{"type":"pong"}\n\n x')


def test_raw_session_refused(path):
    def script(peer):
        silent(peer)
        peer.send({"type": "auth", "id": "auth", "success": False, "error": "access_denied", "hint": "h"},
                  error("not_authenticated"))
    _, result = with_script(path, script, "raw", "--session", "ops", '{"type":"ping"}')
    assert (result.returncode, result.stdout, result.stderr) == (5, b"", b"nolag: auth: access_denied: h\n")


def test_raw_session_without_an_answer(path):
    _, result = with_script(path, silent, "raw", "--session", "ops", '{"type":"ping"}')
    assert result.returncode == 3 and b"before it answered the auth" in result.stderr


@pytest.mark.parametrize("lines, code", [
    ([{"type": "pong"}], 0), ([error("bad_json")], 1),
    ([{"type": "pong"}, error("not_authorized"), error("outbox_full")], 5),
    ([{"type": "auth", "success": False, "error": "access_denied"}], 5)])
@pytest.mark.parametrize("session", [[], ["--session", "ops"]])
def test_raw_exit_code(path, lines, code, session):
    """An error is an answer like any other, unless it is asked for."""
    def script(peer):
        silent(peer)
        if session:
            peer.send({"type": "auth", "id": "auth", "success": True})
        peer.send(*lines)
    for flags, expected in (([], 0), (["--exit-code"], code)):
        _, result = with_script(path, script, "raw", "{}", *flags, *session)
        assert result.returncode == expected and result.stderr == b""
        assert [json.loads(line) for line in result.stdout.splitlines()] == lines


def test_raw_when_the_daemon_goes_away(path):
    with Daemon(path, lambda peer: peer.read_line()):
        process = start(path, "raw", stdin=subprocess.PIPE)
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert process.wait(PATIENCE) == 3
        assert b"before the end of the input" in finish(process)[2]


def test_raw_when_its_reader_goes_away(path):
    with Daemon(path, sending(message("x"), then=stuck)):
        process = start(path, "raw", '{"type":"subscribe","topic":"a/b/c"}')
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == -signal.SIGPIPE
        assert process.stderr.read() == b""
        process.stderr.close()
