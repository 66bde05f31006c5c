# SPDX-License-Identifier: Apache-2.0
"""A private certificate authority, made with openssl in a folder of the test."""

import subprocess
from pathlib import Path

DAYS = {
    # name: first and last day, as openssl ca wants them
    "now": ("20200101000000Z", "20491231000000Z"),
    "past": ("20200101000000Z", "20210101000000Z"),
    "future": ("20480101000000Z", "20491231000000Z"),
}

CONFIG = """
[ca]
default_ca = one
[one]
new_certs_dir = {folder}
database = {folder}/index
unique_subject = no
rand_serial = yes
default_md = sha256
policy = any
email_in_dn = no
[any]
commonName = optional
[req]
distinguished_name = dn
prompt = no
[dn]
CN = a certificate for tests
[authority]
basicConstraints = critical,CA:true
keyUsage = critical,keyCertSign,cRLSign
"""


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Authority:
    """`certificate` is what a ca_file must hold to trust what `issue` makes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._config = folder / "config"
        self._config.write_text(CONFIG.format(folder=folder))
        (folder / "index").touch()
        self._key, self.certificate = folder / "key", folder / "certificate"
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config",
                 str(self._config), "-extensions", "authority", "-days", "3650", "-subj", "/CN=tests",
                 "-keyout", str(self._key), "-out", str(self.certificate))

    def issue(self, name: str, alternative: str = "DNS:localhost", days: str = "now") -> tuple[Path, Path]:
        """A certificate and its key."""
        request, key, certificate = (self._folder / f"{name}.{end}" for end in ("request", "key", "pem"))
        extensions = self._folder / f"{name}.extensions"
        extensions.write_text(f"subjectAltName = {alternative}\n")
        _openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config",
                 str(self._config), "-keyout", str(key), "-out", str(request))
        _openssl("ca", "-batch", "-notext", "-config", str(self._config), "-cert", str(self.certificate), "-keyfile",
                 str(self._key), "-startdate", DAYS[days][0], "-enddate", DAYS[days][1], "-extfile", str(extensions),
                 "-in", str(request), "-out", str(certificate))
        return certificate, key
