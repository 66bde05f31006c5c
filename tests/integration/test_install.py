# SPDX-License-Identifier: Apache-2.0
"""What `meson install` puts where, and what systemd says to it.

NL_BUILD names the build folder; by default it is build/ at the top. Nothing is built here.
"""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("NL_BUILD", TOP / "build")).resolve()

EXPOSURE_TENTHS = 15

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def run(*command, **env):
    return subprocess.run(
        [str(part) for part in command],
        env=dict(os.environ, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def pkg_config(variable, fallback):
    try:
        found = run("pkg-config", f"--variable={variable}", "systemd").stdout.strip()
    except FileNotFoundError:
        found = ""
    return found.lstrip("/") or fallback


UNITS = pkg_config("systemdsystemunitdir", "usr/lib/systemd/system")
SYSUSERS = pkg_config("sysusersdir", "usr/lib/sysusers.d")


def install(root):
    done = run("meson", "install", "--no-rebuild", "-C", BUILD, DESTDIR=str(root))
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A staged installation, made under an umask that must not shine through."""
    root = tmp_path_factory.mktemp("root")
    before = os.umask(0o077)
    try:
        install(root)
    finally:
        os.umask(before)
    return root


def unit_text(root, name):
    return (root / UNITS / name).read_text(encoding="utf-8")


def settings(text):
    """The assignments of a unit in order, without comments."""
    return [tuple(line.split("=", 1)) for line in text.splitlines() if re.match(r"[A-Za-z]+=", line)]


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    "path, expected",
    [
        (f"{UNITS}/nolagd.service", 0o644),
        (f"{UNITS}/nolagd.socket", 0o644),
        (f"{SYSUSERS}/nolagd.conf", 0o644),
        ("etc/nolagd", 0o755),
        ("etc/nolagd/nolagd.conf", 0o644),
        ("etc/nolagd/conf.d", 0o755),
        ("etc/nolagd/tokens", 0o700),
    ],
)
def test_files_and_modes(root, path, expected):
    assert oct(mode(root / path)) == oct(expected)


def test_examples(root):
    """Copies to compare with, where they take no effect."""
    for name in ("nolagd.conf", "second-session.conf"):
        (copy,) = root.glob(f"**/share/doc/nolagd/examples/{name}")
        assert copy.read_bytes() == (TOP / "conf" / name).read_bytes()
        assert mode(copy) == 0o644
    assert list((root / "etc/nolagd/conf.d").iterdir()) == []
    assert list((root / "etc/nolagd/tokens").iterdir()) == []


def test_nothing_is_writable_by_others(root):
    for path in root.rglob("*"):
        assert path.is_symlink() or not mode(path) & 0o022, path


def test_no_path_of_the_build_in_texts(root):
    for path in root.rglob("*"):
        if path.suffix in (".conf", ".service", ".socket"):
            text = path.read_text(encoding="utf-8")
            assert str(TOP) not in text and str(root) not in text
            assert not re.search(r"@\w+@", text), f"{path} has a placeholder left"


def test_edited_configuration_is_kept(tmp_path):
    install(tmp_path)
    conf = tmp_path / "etc/nolagd/nolagd.conf"
    assert conf.read_bytes() == (TOP / "conf/nolagd.conf").read_bytes()
    conf.write_text("# mine\n", encoding="utf-8")
    conf.chmod(0o600)
    install(tmp_path)
    assert conf.read_text(encoding="utf-8") == "# mine\n"
    assert mode(conf) == 0o600


@pytest.fixture
def units(root, tmp_path):
    """The units with the path of a program that exists, which verify wants to see."""
    for name in ("nolagd.service", "nolagd.socket"):
        text = unit_text(root, name)
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text, flags=re.M)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_verify(units):
    done = run("systemd-analyze", "verify", units / "nolagd.service", units / "nolagd.socket")
    assert (done.returncode, done.stdout) == (0, "")


def test_verify_notices_mistakes(units):
    """The check above can fail."""
    with (units / "nolagd.service").open("a", encoding="utf-8") as f:
        f.write("NoSuchSetting=1\n")
    done = run("systemd-analyze", "verify", units / "nolagd.service")
    assert "NoSuchSetting" in done.stdout


def security(unit):
    return run(
        "systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_TENTHS}", unit
    )


def test_exposure(units):
    done = security(units / "nolagd.service")
    assert done.returncode == 0, done.stdout
    assert "Overall exposure level for nolagd.service" in done.stdout


def test_exposure_notices_a_loss(units):
    """The threshold is close: without one line of the hardening it is passed."""
    unit = units / "nolagd.service"
    unit.write_text(unit.read_text(encoding="utf-8").replace("ProtectHome=yes\n", ""), encoding="utf-8")
    assert security(unit).returncode != 0


def test_service(root):
    text = unit_text(root, "nolagd.service")
    pairs = settings(text)
    for pair in [
        ("Type", "notify"),
        ("User", "nolagd"),
        ("Group", "nolag"),
        ("Requires", "nolagd.socket"),
        ("After", "nolagd.socket"),
        ("Restart", "on-failure"),
        ("StartLimitIntervalSec", "0"),
        ("WatchdogSec", "60"),
        ("LimitCORE", "0"),
        ("WantedBy", "multi-user.target"),
        ("LoadCredential", "token-default:/etc/nolagd/tokens/default"),
        ("PrivateUsers", "no"),
    ]:
        assert pair in pairs
    keys = [key for key, _ in pairs]
    assert "RuntimeDirectory" not in keys  # /run/nolagd.sock is the socket unit's
    assert "DynamicUser" not in keys
    assert "network-online" not in "".join(value for _, value in pairs)
    assert "AF_NETLINK" in dict(pairs)["RestrictAddressFamilies"].split()
    assert int(dict(pairs)["LimitNOFILE"]) > 4 * 1000  # max_clients, with room


def test_service_starts_what_is_installed(root):
    """The path in ExecStart is where the binary goes, and the configuration is the one installed."""
    command = dict(settings(unit_text(root, "nolagd.service")))["ExecStart"].split()
    options = run("meson", "introspect", "--buildoptions", BUILD).stdout
    prefix = re.search(r'"name": "prefix", "value": "([^"]*)"', options).group(1)
    sbindir = re.search(r'"name": "sbindir", "value": "([^"]*)"', options).group(1)
    assert command[0] == os.path.join(prefix, sbindir, "nolagd")
    assert command[1] == "--config"
    assert (root / command[2].lstrip("/")).is_file()


def test_credential_is_what_the_configuration_names(root):
    conf = (root / "etc/nolagd/nolagd.conf").read_text(encoding="utf-8")
    (name,) = re.findall(r"^token_file = (\S+)$", conf, flags=re.M)
    pairs = settings(unit_text(root, "nolagd.service"))
    (source,) = [value.split(":")[1] for key, value in pairs if key == "LoadCredential"]
    assert [value.split(":")[0] for key, value in pairs if key.endswith("Credential")] == [name, name]
    assert (root / source.lstrip("/")).parent.is_dir()
    assert source in conf


def test_socket(root):
    pairs = settings(unit_text(root, "nolagd.socket"))
    for pair in [
        ("ListenStream", "/run/nolagd.sock"),
        ("SocketUser", "root"),
        ("SocketGroup", "nolag"),
        ("SocketMode", "0660"),
        ("RemoveOnStop", "yes"),
        ("TriggerLimitIntervalSec", "0"),
        ("WantedBy", "sockets.target"),
    ]:
        assert pair in pairs
    assert "Accept" not in [key for key, _ in pairs]


def dependencies():
    """What the meson.build files ask pkg-config for, that is needed for a build."""
    texts = [path.read_text(encoding="utf-8") for path in [TOP / "meson.build", *TOP.glob("*/meson.build")]]
    found = re.findall(r"dependency\('([\w-]+)'\)", "".join(texts))
    assert "openssl" in found and len(found) > 5
    return sorted(set(found))


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no Debian")
@pytest.mark.parametrize("name", dependencies())
def test_packages_to_build_with_are_told(name):
    """In setup.sh and in the README."""
    folder = run("pkg-config", "--variable=pcfiledir", name).stdout.strip()
    package = run("dpkg", "-S", f"{folder}/{name}.pc").stdout.split(":")[0]
    for text in ("tests/setup.sh", "README.md"):
        assert package in re.findall(r"[\w.+-]+", (TOP / text).read_text(encoding="utf-8")), (package, text)


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers")
def test_sysusers(root, tmp_path):
    """In an empty root: the user nolagd, whose group is nolag, and no group nolagd."""
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", root / SYSUSERS / "nolagd.conf")
    assert done.returncode == 0, done.stdout
    groups = dict(
        line.split(":")[0::2][:2] for line in (tmp_path / "etc/group").read_text().splitlines()
    )
    users = {
        line.split(":")[0]: line.split(":")
        for line in (tmp_path / "etc/passwd").read_text().splitlines()
    }
    assert list(groups) == ["nolag"]
    assert list(users) == ["nolagd"]
    assert users["nolagd"][3] == groups["nolag"]
    assert users["nolagd"][6].endswith("nologin")
