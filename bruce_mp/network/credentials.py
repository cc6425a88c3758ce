"""Read passwords and tokens from the files or environment variables that the configuration names.

The daemon keeps no copy of a secret: each use reads the file or variable again.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.config.model import Config

__all__ = ["exposed_file_warnings", "read_remedy", "read_secret", "unreadable_file_warnings"]

_MAX_BYTES: Final = 64 * 1024
"""Maximum number of bytes to read, because a wrongly configured file may be huge; a secret has far fewer."""
_OTHERS_ACCESS: Final = {stat.S_IROTH: "read", stat.S_IWOTH: "written"}
"""Mode bits that give all users access to a file, and the word for this access in `exposed_file_warnings`."""


def read_secret(file: str | None, variable: str | None, subject: str) -> str | None:
    """Return the secret in `file` or in the environment variable `variable`; None if both parameters are None.

    Raises ConfigError if the secret is missing, empty or not UTF-8, or if the file cannot be read. The text of the
    error begins with `subject`, such as "The password".
    """
    if file is not None:
        data, place = _read(Path(file), subject), file
    elif variable is not None:
        data, place = os.environb.get(variable.encode(), b""), f"the environment variable {variable}"
    else:
        return None
    if not data:
        raise ConfigError(f"{subject} is not in {place}: that is empty or missing.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        # `from None`, because the UnicodeDecodeError contains the bytes of the secret.
        raise ConfigError(f"{subject} in {place} is not UTF-8.") from None


def _read(file: Path, subject: str) -> bytes:
    """Return the contents of the file without a line feed at the end. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_BYTES).removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise ConfigError(f"{subject} cannot be read from {file}: {error.strerror}.{read_remedy(error)}") from error


def read_remedy(error: OSError) -> str:
    """Return the remedy for a failed read of a file, as a sentence with a leading space; "" if none is known."""
    remedies = {
        errno.EACCES: " Check its owner and mode, and those of the directories above it.",
        errno.ENOENT: " Create the file, or correct its name.",
    }
    return remedies.get(error.errno or 0, "")


def exposed_file_warnings(config: Config) -> Iterator[str]:
    """Yield a sentence for each secret file that every user of this host can read or write."""
    for setting, file in _secret_files(config).items():
        if file is not None and (mode := _mode(file)) & sum(_OTHERS_ACCESS):
            access = " and ".join(verb for bit, verb in _OTHERS_ACCESS.items() if mode & bit)
            yield (
                f"{setting} = {file} can be {access} by every user of this host (mode {mode:04o}): chmod o-rw {file}, "
                "and make the daemon's user its owner."
            )


def unreadable_file_warnings(config: Config) -> Iterator[str]:
    """Yield a sentence for each secret or certificate file that is missing, or that the current user may not read.

    Such a file does not prevent the daemon's start: the daemon waits for the file.
    """
    tls = config.kafka.tls
    tls_files = {
        "kafka.tls.ca_file": tls.ca_file,
        "kafka.tls.certificate_file": tls.certificate_file,
        "kafka.tls.key_file": tls.key_file,
    }
    for setting, file in (_secret_files(config) | tls_files).items():
        if file is None or os.access(file, os.R_OK, effective_ids=True):
            continue
        try:
            Path(file).stat()
        except FileNotFoundError:
            yield f"{setting} = {file} is not there yet: create it, or correct its name."
            continue
        except OSError:
            pass  # the current user lacks search permission for a directory above the file
        yield f"{setting} = {file} cannot be read by the current user: the daemon's user needs read permission."


def _secret_files(config: Config) -> dict[str, str | None]:
    """Return the path of each file that contains a secret, by the setting that names the file; None if it is absent."""
    tls, sasl = config.kafka.tls, config.kafka.sasl
    # If no key_file is set, the certificate_file must contain the key.
    key_setting = "kafka.tls.key_file" if tls.key_file else "kafka.tls.certificate_file"
    return {
        key_setting: tls.key_file or tls.certificate_file,
        "kafka.tls.key_password_file": tls.key_password_file,
        "kafka.sasl.password_file": sasl.password_file,
        "kafka.sasl.token_file": sasl.token_file,
        "kafka.sasl.kerberos_keytab_file": sasl.kerberos_keytab_file,
        "http.token_file": config.http.token_file,
    }


def _mode(file: str) -> int:
    try:
        return stat.S_IMODE(Path(file).stat().st_mode)
    except OSError:
        return 0  # not reported here: the process that reads the file will report the error
