"""Credentials for AWS, from the places and in the order that AWS' own tools use.

Absent are the ones that need a person or another program: single sign-on, `credential_process`, and profiles with a
`role_arn`.
"""

from __future__ import annotations

import configparser
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec

from bruce_mp.cli.tokens.aws_signature import Credentials, presigned_url
from bruce_mp.cli.tokens.https import request
from bruce_mp.cli.tokens.issued_token import TokenError
from bruce_mp.errors import ConfigError
from bruce_mp.network.credentials import read_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.cli.tokens.https import HttpResponse

__all__ = ["assume_role", "find_credentials"]

_ROLE_SERVICE: Final = "The AWS token service"
_ROLE_ELEMENTS: Final = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
_CONTAINER_HOST: Final = "169.254.170.2"
_TRUSTED_HOSTS: Final = frozenset(
    {_CONTAINER_HOST, "169.254.170.23", "fd00:ec2::23", "169.254.169.254", "fd00:ec2::254"}
)
"""Link-local addresses of ECS, EKS Pod Identity and the instance metadata, which speak plain HTTP."""
_INSTANCE_METADATA: Final = "http://169.254.169.254"
_SESSION_S: Final = 60
_NONE_FOUND: Final = (
    "There are no AWS credentials: not in AWS_ACCESS_KEY_ID, in a web identity, in {file}, or from a container, and "
    "the instance has no role. Attach a role to this host or its service account, or give --credentials-file."
)


def find_credentials(region: str, profile: str | None, file: str | None) -> Credentials:
    """Return the first credentials that exist. Raises TokenError and ConfigError."""
    env = os.environ
    named = file or env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    path = Path(os.path.expanduser(named))  # noqa: PTH111 - Path.expanduser() fails for a user without a home
    if profile or file:
        return _of_file(path, profile or env.get("AWS_PROFILE") or "default")
    found = _of_environment(env) or _of_web_identity(env, region)
    # Path.exists() fails in a home directory that systemd hides.
    if found is None and (os.access(path, os.F_OK) or env.get("AWS_PROFILE")):
        found = _of_file(path, env.get("AWS_PROFILE") or "default")
    found = found or _of_container(env) or _of_instance(env)
    if found is None:
        raise TokenError("no_credentials", _NONE_FOUND.format(file=path))
    return found


def _of_environment(env: Mapping[str, str]) -> Credentials | None:
    key_id = env.get("AWS_ACCESS_KEY_ID")
    if not key_id:
        return None
    secret = read_secret(None, "AWS_SECRET_ACCESS_KEY", "The secret access key") or ""
    return Credentials(key_id, secret, env.get("AWS_SESSION_TOKEN", ""))


def _of_file(path: Path, profile: str) -> Credentials:
    read_secret(str(path), None, "The AWS credentials")  # explains a file that cannot be read
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
        section = parser[profile]
        return Credentials(
            section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token", "")
        )
    except KeyError as error:
        missing = str(error.args[0])
        text = f"has no {missing}" if missing.startswith("aws_") else "is missing"
        raise ConfigError(
            f"The profile {profile} of {path} {text}. Add it, or name another profile (--profile)."
        ) from None
    except (configparser.Error, UnicodeDecodeError):
        # Not chained: the error quotes a line of the file.
        raise ConfigError(f"{path} is not a file of AWS credentials. Correct it, or give --credentials-file.") from None


def _of_web_identity(env: Mapping[str, str], region: str) -> Credentials | None:
    role, file = env.get("AWS_ROLE_ARN"), env.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if not role or not file:
        return None
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        **_role_parameters(role),
        "WebIdentityToken": read_secret(file, None, "The web identity token") or "",
    }
    return _read_role(role, request(_ROLE_SERVICE, _token_service_url(region), data=urlencode(form).encode()))


def assume_role(role: str, credentials: Credentials, region: str) -> Credentials:
    """Return temporary credentials of a role. Raises TokenError."""
    parameters = {"Action": "AssumeRole", **_role_parameters(role)}
    url = presigned_url(
        _token_service_url(region), parameters, credentials, service="sts", region=region, now_s=time.time()
    )
    return _read_role(role, request(_ROLE_SERVICE, url))


def _role_parameters(role: str) -> dict[str, str]:
    session = os.environ.get("AWS_ROLE_SESSION_NAME") or "bruce"
    return {"Version": "2011-06-15", "RoleArn": role, "RoleSessionName": session}


def _token_service_url(region: str) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{suffix}/"


def _read_role(role: str, answer: HttpResponse) -> Credentials:
    xml = answer.body.decode(errors="replace")
    if answer.status != 200:
        code = _element(xml, "Code") or f"HTTP status {answer.status}"
        text = f"{_ROLE_SERVICE} refuses role {role} ({code}). Check its trust policy."
        raise TokenError("access_denied", text)
    key_id, secret, token, expiration = (_element(xml, name) for name in _ROLE_ELEMENTS)
    if key_id and secret and token:
        try:
            return Credentials(key_id, secret, token, datetime.fromisoformat(expiration))
        except ValueError:
            pass
    text = (
        f"{_ROLE_SERVICE} answers for role {role} without valid credentials. Check AWS_ENDPOINT_URL_STS and the proxy."
    )
    raise TokenError("invalid_response", text)


def _element(xml: str, name: str) -> str:
    """Return the text of an element, "" without one; the values of this answer need no XML parser."""
    found = re.search(f"<{name}>([^<]*)</{name}>", xml)
    return found[1] if found else ""


def _of_container(env: Mapping[str, str]) -> Credentials | None:
    relative, full = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    url = f"http://{_CONTAINER_HOST}{relative}" if relative else full
    if not url:
        return None
    file, headers = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), {}
    token = read_secret(file, None, "The container's token") if file else env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    if token:
        headers["Authorization"] = token.strip()
    return _of_role("The container's credentials", url, headers)


def _of_instance(env: Mapping[str, str]) -> Credentials | None:
    """Ask the metadata service of the instance, with the session of its version 2."""
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    base = (env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _INSTANCE_METADATA).rstrip("/") + "/latest/"
    server = "The instance metadata service"
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_SESSION_S)}
    try:
        session = request(
            server, f"{base}api/token", headers=lifetime, method="PUT", trusted_hosts=_TRUSTED_HOSTS, timeout_s=2
        )
    except TokenError:
        return None  # this host is no instance
    if session.status != 200:
        return None  # an instance of another cloud
    headers = {"X-aws-ec2-metadata-token": session.body.decode("ascii", "replace")}
    roles = request(server, f"{base}meta-data/iam/security-credentials/", headers=headers, trusted_hosts=_TRUSTED_HOSTS)
    if roles.status != 200 or not roles.body.strip():
        return None
    role = roles.body.decode("ascii", "replace").split()[0]
    return _of_role(server, f"{base}meta-data/iam/security-credentials/{role}", headers)


def _of_role(server: str, url: str, headers: Mapping[str, str]) -> Credentials:
    answer = request(server, url, headers=headers, trusted_hosts=_TRUSTED_HOSTS)
    try:
        if answer.status == 200:
            return msgspec.json.decode(answer.body, type=Credentials)
    except msgspec.MsgspecError:
        pass  # not chained below: the error may quote a secret
    text = f"{server} ({url}) answers with HTTP status {answer.status} and without credentials. Check the role."
    raise TokenError("no_credentials", text)
