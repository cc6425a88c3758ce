"""Read passwords and tokens from the files or environment variables that the configuration names.

Each use reads the secret again; no copy is kept.
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

__all__ = ["exposed_files", "read_remedy", "read_secret", "unreadable_files"]

_MAX_BYTES: Final = 64 * 1024
"""Bound of the read, far above the size of a secret, in case the file is the wrong one."""
_OTHERS_ACCESS: Final = {stat.S_IROTH: "read", stat.S_IWOTH: "written"}


def read_secret(file: str | None, variable: str | None, what: str) -> str | None:
    """Return the secret, or None if neither `file` nor `variable` is configured.

    Raises ConfigError with a text that begins with `what`, such as "The password".
    """
    if file is not None:
        secret = _read(Path(file), what)
    elif variable is not None:
        secret = os.environ.get(variable, "")
    else:
        return None
    if not secret:
        place = file or f"the environment variable {variable}"
        raise ConfigError(f"{what} is not in {place}: that is empty or missing.")
    return secret


def _read(file: Path, what: str) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES)
        return data.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigError(f"{what} cannot be read from {file}: {error.strerror}.{read_remedy(error)}") from error
    except UnicodeDecodeError:
        # Not chained: the error contains the bytes of the secret.
        raise ConfigError(f"{what} in {file} is not UTF-8.") from None


def read_remedy(error: OSError) -> str:
    """Return the remedy for a file that cannot be read, as a sentence with a leading space; empty if none is known."""
    remedies = {
        errno.EACCES: " Check its owner and mode, and those of the directories above it.",
        errno.ENOENT: " Create the file, or correct its name.",
    }
    return remedies.get(error.errno or 0, "")


def exposed_files(config: Config) -> Iterator[str]:
    """Yield a sentence for each secret file that every user of this host can read or write."""
    for setting, file in _secret_files(config).items():
        if file is not None and (mode := _mode(file)) & sum(_OTHERS_ACCESS):
            access = " and ".join(verb for bit, verb in _OTHERS_ACCESS.items() if mode & bit)
            yield (
                f"{setting} = {file} can be {access} by every user of this host (mode {mode:04o}): chmod o-rw {file}, "
                "and make the daemon's user its owner."
            )


def unreadable_files(config: Config) -> Iterator[str]:
    """Yield a sentence for each file of a secret or certificate that is missing, or unreadable for the present user.

    The daemon starts without the file, and waits for it.
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
            pass  # the present user may not search a directory above it
        yield f"{setting} = {file} cannot be read by the present user: the daemon's user needs read permission."


def _secret_files(config: Config) -> dict[str, str | None]:
    tls, sasl = config.kafka.tls, config.kafka.sasl
    # Without a file for the key, that of the certificate has it.
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
        return 0  # the process that reads the file reports the error
