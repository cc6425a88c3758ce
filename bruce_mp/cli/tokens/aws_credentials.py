"""Credentials for AWS, from the sources and in the order that AWS' own tools use.

The module supports neither sources that need a person or another program (single sign-on, `credential_process`), nor
profiles with a `role_arn`.
"""

from __future__ import annotations

import configparser
import os
import re
import time
from datetime import datetime
from functools import partial
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

_STS_NAME: Final = "The AWS token service"
"""The name of the security token service (STS) in error texts."""
_CREDENTIAL_ELEMENTS: Final = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
_CONTAINER_HOST: Final = "169.254.170.2"
_TRUSTED_HOSTS: Final = frozenset(
    {_CONTAINER_HOST, "169.254.170.23", "fd00:ec2::23", "169.254.169.254", "fd00:ec2::254"}
)
"""Local addresses of AWS services. Requests to them do not leave the host's own network, so they need no TLS. The
services are the credentials services of ECS and EKS Pod Identity, and the instance metadata service."""
_INSTANCE_METADATA: Final = "http://169.254.169.254"
_SESSION_LIFETIME_S: Final = 60
"""Lifetime of a session with the instance metadata service. Only the two requests for credentials need the session."""
_PROBE_TIMEOUT_S: Final = 2.0
"""Time limit for the first request to the instance metadata service; short, because outside AWS nothing may answer."""
_NO_CREDENTIALS_TEXT: Final = (
    "No source has AWS credentials: AWS_ACCESS_KEY_ID, a web identity, {file}, the container or the instance's role. "
    "Attach a role to this host or its service account, or give --credentials-file."
)


def find_credentials(region: str, profile: str | None, file: str | None) -> Credentials:
    """Return the credentials of the first source that has some. Raise TokenError or ConfigError.

    If `profile` or `file` is given, the only source is the credentials file: `file`, or the default one.
    """
    env = os.environ
    name = file or env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser() fails for a user without a home
    if profile or file:
        return _from_file(path, profile or env.get("AWS_PROFILE") or "default")
    found = _from_environment(env) or _from_web_identity(env, region)
    # os.access, because Path.exists() raises an error in a home directory that systemd hides.
    if found is None and (os.access(path, os.F_OK) or env.get("AWS_PROFILE")):
        found = _from_file(path, env.get("AWS_PROFILE") or "default")
    found = found or _from_container(env) or _from_instance(env)
    if found is None:
        raise TokenError("no_credentials", _NO_CREDENTIALS_TEXT.format(file=path))
    return found


def _from_environment(env: Mapping[str, str]) -> Credentials | None:
    key_id = env.get("AWS_ACCESS_KEY_ID")
    if not key_id:
        return None
    # `or ""` is for the type checker: `read_secret` returns None only if it gets neither a file nor a variable.
    secret = read_secret(None, "AWS_SECRET_ACCESS_KEY", "The secret access key") or ""
    return Credentials(key_id, secret, env.get("AWS_SESSION_TOKEN", ""))


def _from_file(path: Path, profile: str) -> Credentials:
    read_secret(str(path), None, "The AWS credentials")  # raises an error with a remedy for an unreadable file
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


def _from_web_identity(env: Mapping[str, str], region: str) -> Credentials | None:
    role, file = env.get("AWS_ROLE_ARN"), env.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if not role or not file:
        return None
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        **_role_parameters(role),
        "WebIdentityToken": read_secret(file, None, "The web identity token") or "",
    }
    return _read_role_credentials(role, request(_STS_NAME, _token_service_url(region), data=urlencode(form).encode()))


def assume_role(role: str, credentials: Credentials, region: str) -> Credentials:
    """Return temporary credentials of a role. Raise TokenError or ConfigError."""
    parameters = {"Action": "AssumeRole", **_role_parameters(role)}
    url = presigned_url(
        _token_service_url(region), parameters, credentials, service="sts", region=region, now_s=time.time()
    )
    return _read_role_credentials(role, request(_STS_NAME, url))


def _role_parameters(role: str) -> dict[str, str]:
    """Return the parameters that all requests for a role have."""
    session = os.environ.get("AWS_ROLE_SESSION_NAME") or "bruce"
    return {"Version": "2011-06-15", "RoleArn": role, "RoleSessionName": session}


def _token_service_url(region: str) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{suffix}/"


def _read_role_credentials(role: str, response: HttpResponse) -> Credentials:
    """Read the credentials in a response of the token service. Raise TokenError."""
    xml = response.body.decode(errors="replace")
    if response.status != 200:
        code = _element(xml, "Code") or f"HTTP status {response.status}"
        text = f"{_STS_NAME} refuses role {role} ({code}). Check its trust policy."
        raise TokenError("access_denied", text)
    key_id, secret, token, expiration = (_element(xml, name) for name in _CREDENTIAL_ELEMENTS)
    if key_id and secret and token:
        try:
            return Credentials(key_id, secret, token, datetime.fromisoformat(expiration))
        except ValueError:
            pass
    text = f"{_STS_NAME} answers for role {role} without valid credentials."
    raise TokenError("invalid_response", f"{text} Check AWS_ENDPOINT_URL_STS and the proxy.")


def _element(xml: str, name: str) -> str:
    """Return the text of the element `name`, or "" if there is none.

    A search is enough, because credentials contain no XML escapes.
    """
    found = re.search(f"<{name}>([^<]*)</{name}>", xml)
    return found[1] if found else ""


def _from_container(env: Mapping[str, str]) -> Credentials | None:
    relative, full = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    url = f"http://{_CONTAINER_HOST}{relative}" if relative else full
    if not url:
        return None
    file = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = read_secret(file, None, "The container's token") if file else env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    headers = {"Authorization": token.strip()} if token else {}
    return _request_credentials("The credentials service of the container", url, headers)


def _from_instance(env: Mapping[str, str]) -> Credentials | None:
    """Request the credentials of the instance's role from the instance metadata service, version 2."""
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    base = (env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _INSTANCE_METADATA).rstrip("/") + "/latest/"
    server = "The instance metadata service"
    lifetime_header = {"X-aws-ec2-metadata-token-ttl-seconds": str(_SESSION_LIFETIME_S)}
    request_metadata = partial(request, server, trusted_hosts=_TRUSTED_HOSTS)
    try:
        session = request_metadata(
            f"{base}api/token", headers=lifetime_header, method="PUT", timeout_s=_PROBE_TIMEOUT_S
        )
    except TokenError:
        return None  # this host is not a cloud instance
    if session.status != 200:
        return None  # this host is an instance of another cloud
    headers = {"X-aws-ec2-metadata-token": session.body.decode("ascii", "replace")}
    roles_url = f"{base}meta-data/iam/security-credentials/"
    roles = request_metadata(roles_url, headers=headers)
    if roles.status != 200 or not roles.body.strip():
        return None
    role = roles.body.decode("ascii", "replace").split()[0]
    return _request_credentials(server, roles_url + role, headers)


def _request_credentials(server: str, url: str, headers: Mapping[str, str]) -> Credentials:
    """Request credentials as JSON from the container's or the instance's service. Raise TokenError."""
    response = request(server, url, headers=headers, trusted_hosts=_TRUSTED_HOSTS)
    try:
        if response.status == 200:
            return msgspec.json.decode(response.body, type=Credentials)
    except msgspec.MsgspecError:
        pass  # the TokenError below is not chained to this error, because its text may quote a secret
    text = f"{server} ({url}) answers with HTTP status {response.status} and without credentials. Check the role."
    raise TokenError("no_credentials", text)
