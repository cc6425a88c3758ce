"""`bruce token`: client credentials at a token endpoint, and tokens for Amazon MSK."""

from __future__ import annotations

import json
import pwd
import time
from base64 import b64encode, urlsafe_b64decode
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from bruce_mp.cli.commands import main
from bruce_mp.cli.tokens import aws_msk_iam
from bruce_mp.cli.tokens.aws_signature import Credentials, presigned_url
from support.certificates import Authority
from support.ports import ReservedPort
from support.token_endpoint import Answer, TokenEndpoint, serve_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET: Final = "p@ss:word&more"
GOOD: Final = Answer({"access_token": "opaque-token", "token_type": "Bearer", "expires_in": 300})


@pytest.fixture(autouse=True)
def no_credentials_of_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with serve_tokens() as served:
        served.answer(GOOD)
        yield served


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Return a function that runs `bruce token`, and returns exit status, response and standard error."""

    def run_command(*words: str) -> tuple[int, dict[str, Any], str]:
        status = main(["token", *words])
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
        return status, json.loads(printed.out), printed.err

    return run_command


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    file = tmp_path / "client-secret"
    file.write_text(f"{SECRET}\n")
    return str(file)


def oidc(endpoint: TokenEndpoint, secret_file: str, *words: str) -> list[str]:
    return [
        "oidc", "--token-url", endpoint.token_url, "--client-id", "bruce client", "--client-secret-file", secret_file,
        *words,
    ]  # fmt: skip


# --- client credentials -----------------------------------------------------------------------------------------------
def test_client_credentials_become_a_token(run: Any, endpoint: TokenEndpoint, secret_file: str) -> None:
    status, response, errors = run(*oidc(endpoint, secret_file, "--scope", "a b", "--parameter", "audience=kafka"))
    assert (status, errors) == (0, "")
    assert response == {"access_token": "opaque-token", "token_type": "Bearer", "expires_in": 300}
    (request,) = endpoint.requests
    assert request.form == {"grant_type": "client_credentials", "scope": "a b", "audience": "kafka"}
    # RFC 6749, section 2.3.1: both parts are form-encoded before they are joined.
    assert request.headers["Authorization"] == "Basic " + b64encode(b"bruce+client:p%40ss%3Aword%26more").decode()


def test_the_form_can_carry_the_secret(run: Any, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    words = ("--token-url", endpoint.token_url, "--client-id", "bruce", "--client-secret-env", "CLIENT_SECRET")
    assert run("oidc", *words, "--client-auth", "post")[0] == 0
    (request,) = endpoint.requests
    assert request.form == {"grant_type": "client_credentials", "client_id": "bruce", "client_secret": SECRET}
    assert "Authorization" not in request.headers


def test_a_signed_assertion_replaces_the_secret(run: Any, endpoint: TokenEndpoint, secret_file: str) -> None:
    words = ("--token-url", endpoint.token_url, "--client-id", "bruce", "--client-assertion-file", secret_file)
    assert run("oidc", *words)[0] == 0
    (request,) = endpoint.requests
    assert request.form["client_assertion"] == SECRET
    assert request.form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@pytest.mark.process
def test_the_certificate_of_the_endpoint_is_verified(run: Any, secret_file: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with serve_tokens(authority.issue("endpoint")) as endpoint:
        endpoint.answer(GOOD)
        assert run(*oidc(endpoint, secret_file, "--ca-file", str(authority.certificate)))[0] == 0
        status, response, errors = run(*oidc(endpoint, secret_file))
    assert (status, response["error"]) == (1, "untrusted_certificate")
    assert (
        "has a certificate that cannot be trusted: unable to get local issuer certificate. Put its authority" in errors
    )
    assert len(endpoint.requests) == 1
    with serve_tokens(authority.issue("elsewhere", hosts="DNS:elsewhere.example")) as endpoint:
        status, _, errors = run(*oidc(endpoint, secret_file, "--ca-file", str(authority.certificate)))
    assert "IP address mismatch" in errors
    assert endpoint.requests == []


@pytest.mark.parametrize(
    ("answer", "explained"),
    [
        (
            Answer({"error": "invalid_client", "error_description": f"wrong: {SECRET}"}, 401),
            ("invalid_client", "refuses the client (invalid_client): wrong: (secret). Check --client-id"),
        ),
        (Answer({"error": "invalid_scope"}, 400), ("invalid_scope", "(invalid_scope). Check --scope.")),
        (Answer({"error": "odd\n\x1b[31m"}, 400), ("odd [31m", "(odd [31m). Check the options")),
        (Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}), ("redirect", "redirects to another address")),
        (Answer(b"<html>", 200), ("invalid_response", "but not with a token response. Check --token-url.")),
        (Answer(b"oops", 503), ("invalid_response", "HTTP status 503, but not with a token response")),
        (Answer({"token": "x"}, 200), ("invalid_response", "without a token. Check --token-url.")),
        (Answer([1], 200), ("invalid_response", "but not with a token response")),
    ],
)
def test_a_refusal_is_one_sentence_with_a_remedy(
    run: Any, endpoint: TokenEndpoint, secret_file: str, answer: Answer, explained: tuple[str, str]
) -> None:
    endpoint.answer(answer)
    status, response, errors = run(*oidc(endpoint, secret_file))
    assert (status, response["error"]) == (1, explained[0])
    assert explained[1] in response["error_description"]
    assert errors == f"bruce: {response['error_description']}\n"
    assert endpoint.token_url in errors
    assert len(endpoint.requests) == 1  # no redirect is followed with the secret


def test_an_endpoint_that_is_down_is_named(run: Any, secret_file: str) -> None:
    port = ReservedPort()
    url = f"http://127.0.0.1:{port.number}/token"
    status, response, _ = run("oidc", "--token-url", url, "--client-id", "b", "--client-secret-file", secret_file)
    port.release()
    assert (status, response["error"]) == (1, "unreachable")
    assert f"({url}) cannot be reached: Connection refused. Check the address" in response["error_description"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://idp.example/token", "not safe for secrets: http://idp.example/token. Give one that begins with https"),
        ("ftp://127.0.0.1/token", "not safe for secrets"),
        ("token", "not safe for secrets"),
        ("https://[::1/token", "has an invalid address"),
        ("https://u:hidden@idp.example/token", "has an address with a user or password. Remove them"),
    ],
)
def test_the_secret_goes_to_no_unsafe_address(run: Any, secret_file: str, url: str, words: str) -> None:
    status, response, errors = run("oidc", "--token-url", url, "--client-id", "b", "--client-secret-file", secret_file)
    assert (status, response["error"]) == (1, "invalid_configuration")
    assert words in errors
    assert "hidden" not in errors


def test_a_missing_secret_is_named(run: Any, endpoint: TokenEndpoint, tmp_path: Path) -> None:
    status, _, errors = run(*oidc(endpoint, str(tmp_path / "none")))
    assert (status, endpoint.requests) == (1, [])
    assert f"The client's secret cannot be read from {tmp_path}/none" in errors


def test_the_secret_cannot_be_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["token", "oidc", "--token-url", "https://x/", "--client-id", "b", "--client-secret", "s"])
    assert "error:" in capsys.readouterr().err


# --- Amazon MSK -------------------------------------------------------------------------------------------------------
KEY_ID: Final = "AKIAIOSFODNN7EXAMPLE"
KEY: Final = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # of AWS' documentation
NOW_S: Final = 1772600767.0  # 2026-03-04 05:06:07 UTC
LONG_TOKEN: Final = "IQoJb3JpZ2luX2Vj//////////wEaCXVzLWVhc3QtMSJHMEUCIQ+/a b~c=="


@pytest.mark.parametrize(
    ("region", "credentials", "signature"),
    [
        (
            "eu-central-1", Credentials(KEY_ID, KEY),
            "65c7382402e467309fa816963ac4e51f3c7889c82abb17d9a32c2d8d364b1102",
        ),
        (
            "us-east-1", Credentials("ASIAIOSFODNN7EXAMPLE", KEY, LONG_TOKEN),
            "4125ba8ebe1ec806dc0726c98857e380084451dfc0230cc0ce6811ea39040ad8",
        ),
    ],
)  # fmt: skip
def test_the_signature_is_that_of_botocore(region: str, credentials: Credentials, signature: str) -> None:
    """The signatures come from SigV4QueryAuth of botocore 1.44.8, with the same time."""
    url = urlsplit(aws_msk_iam.presigned_request(credentials, region, NOW_S))
    assert (url.scheme, url.hostname, url.path) == ("https", f"kafka.{region}.amazonaws.com", "/")
    query = parse_qs(url.query, strict_parsing=True)
    assert query["X-Amz-Signature"] == [signature]
    assert query["X-Amz-Date"] == ["20260304T050607Z"]
    assert query.get("X-Amz-Security-Token", [""]) == [credentials.session_token]


def test_a_malformed_region_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "aws-msk-iam", "--region", "eu_central_1"]) == 1
    assert '"eu_central_1" is not the name of a region' in capsys.readouterr().err


@pytest.mark.parametrize("path", ["", "/"])
def test_the_signature_of_an_assumed_role_is_that_of_botocore(path: str) -> None:
    parameters = {
        "Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": "arn:aws:iam::123456789012:role/bruce",
        "RoleSessionName": "bruce",
    }  # fmt: skip
    endpoint = f"https://sts.eu-west-1.amazonaws.com{path}"
    credentials = Credentials(KEY_ID, KEY)
    url = presigned_url(endpoint, parameters, credentials, service="sts", region="eu-west-1", now_s=NOW_S)
    assert parse_qs(urlsplit(url).query)["X-Amz-Signature"] == [
        "7dd6b2d7694bcf77d54631ad29154ec8ce11029671e1deb2f1446595b9bafc54"
    ]


def decoded(response: dict[str, Any]) -> dict[str, list[str]]:
    token = response["access_token"]
    assert "=" not in token
    return parse_qs(urlsplit(urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()).query)


def test_credentials_of_the_environment_sign_a_token(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": KEY_ID, "SECRET_ACCESS_KEY": KEY, "REGION": "eu-north-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    status, response, _ = run("aws-msk-iam")
    assert (status, response["expires_in"], response["token_type"]) == (0, 900, "Bearer")
    query = decoded(response)
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith(f"{KEY_ID}/")
    assert query["User-Agent"][0].startswith("bruce/")
    assert KEY not in str(query)


def test_a_profile_of_the_credentials_file_signs_a_token(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        f"[other]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {KEY}\n[half]\naws_access_key_id = x\n"
    )
    words = ("aws-msk-iam", "--region", "eu-north-1", "--credentials-file", str(file), "--profile")
    assert decoded(run(*words, "other")[1])["X-Amz-Credential"][0].startswith(KEY_ID)
    assert f"The profile half of {file} has no aws_secret_access_key. Add it" in run(*words, "half")[2]
    assert f"The profile none of {file} is missing. Add it" in run(*words, "none")[2]
    file.write_text(f"{KEY} is no section")
    status, _, errors = run(*words, "other")
    assert (status, KEY in errors) == (1, False)
    assert f"{file} is not a file of AWS credentials" in errors


ROLE: Final = {"AccessKeyId": KEY_ID, "SecretAccessKey": KEY, "Token": "session"}


@pytest.mark.parametrize("seconds", [120, 7200])
def test_the_role_of_an_instance_signs_a_token(
    run: Any, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The token expires with the role's credentials."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint.base)
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    roles = "/latest/meta-data/iam/security-credentials/"
    endpoint.answer(Answer(b"metadata-session"), path="/latest/api/token")
    endpoint.answer(Answer(b"the-role"), path=roles)
    minute = 6 + seconds // 60
    expiration = f"2026-03-04T{5 + minute // 60:02}:{minute % 60:02}:07Z"
    endpoint.answer(Answer({**ROLE, "Expiration": expiration}), path=f"{roles}the-role")
    status, response, _ = run("aws-msk-iam", "--region", "eu-north-1")
    assert (status, response["expires_in"]) == (0, min(seconds, 900))
    assert decoded(response)["X-Amz-Security-Token"] == ["session"]
    assert [request.method for request in endpoint.requests] == ["PUT", "GET", "GET"]
    sessions = [request.headers.get("X-Aws-Ec2-Metadata-Token") for request in endpoint.requests]
    assert sessions == [None, "metadata-session", "metadata-session"]


def test_the_metadata_service_of_another_cloud_has_no_credentials(
    run: Any, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint.base)
    endpoint.answer(Answer(b"<html>\r\nnot found", 404), path="/latest/api/token")
    assert run("aws-msk-iam", "--region", "eu-north-1")[1]["error"] == "no_credentials"


def test_a_container_signs_a_token(
    run: Any, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pod-token").write_text("of the pod\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint.base}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "pod-token"))
    endpoint.answer(Answer(ROLE), Answer(b"gone", 404), path="/v1/credentials")
    assert run("aws-msk-iam", "--region", "eu-north-1")[0] == 0
    assert endpoint.requests[0].headers["Authorization"] == "of the pod"
    status, response, _ = run("aws-msk-iam", "--region", "eu-north-1")
    assert (status, response["error"]) == (1, "no_credentials")
    assert "HTTP status 404 and without credentials. Check the role." in response["error_description"]


STS_ANSWER: Final = f"""<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>{KEY_ID}</AccessKeyId><SecretAccessKey>{KEY}</SecretAccessKey><SessionToken>of-sts</SessionToken>
<Expiration>2126-03-04T05:06:07Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


def test_a_web_identity_signs_a_token(
    run: Any, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "identity").write_text("a.b.c")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/bruce")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"{endpoint.base}/sts")
    refusal = Answer(b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>", 403)
    endpoint.answer(Answer(STS_ANSWER.encode()), refusal, path="/sts")
    status, response, _ = run("aws-msk-iam", "--region", "eu-north-1")
    assert (status, decoded(response)["X-Amz-Security-Token"]) == (0, ["of-sts"])
    assert endpoint.requests[0].form["WebIdentityToken"] == "a.b.c"
    errors = run("aws-msk-iam", "--region", "eu-north-1")[2]
    assert "refuses role arn:aws:iam::123456789012:role/bruce (AccessDenied). Check its trust policy." in errors


@pytest.mark.parametrize("missing", ["AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration", "2126-"])
def test_an_answer_without_the_credentials_of_a_role_is_refused(
    run: Any, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name, value in {"ACCESS_KEY_ID": KEY_ID, "SECRET_ACCESS_KEY": KEY}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"{endpoint.base}/sts")
    endpoint.answer(Answer(STS_ANSWER.replace(missing, "x").encode()), path="/sts")
    status, response, _ = run("aws-msk-iam", "--region", "eu-north-1", "--role-arn", "arn:aws:iam::1:role/other")
    assert (status, response["error"]) == (1, "invalid_response")
    assert "answers for role arn:aws:iam::1:role/other without valid credentials." in response["error_description"]


def test_an_assumed_role_signs_a_token(run: Any, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": KEY_ID, "SECRET_ACCESS_KEY": KEY}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"{endpoint.base}/sts")
    endpoint.answer(Answer(STS_ANSWER.encode()), path="/sts")
    status, response, _ = run("aws-msk-iam", "--region", "eu-north-1", "--role-arn", "arn:aws:iam::1:role/other")
    assert (status, decoded(response)["X-Amz-Security-Token"]) == (0, ["of-sts"])
    query = parse_qs(endpoint.requests[0].query)
    assert (query["Action"], query["RoleArn"]) == (["AssumeRole"], ["arn:aws:iam::1:role/other"])
    assert query["X-Amz-Credential"][0].endswith("/eu-north-1/sts/aws4_request")


@pytest.mark.parametrize("is_safe", [True, False])
def test_a_presigned_address_stays_secret(run: Any, monkeypatch: pytest.MonkeyPatch, *, is_safe: bool) -> None:
    """Whoever has the address can assume the role while it is valid."""
    for name, value in {"ACCESS_KEY_ID": KEY_ID, "SECRET_ACCESS_KEY": KEY}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    port = ReservedPort()
    base = f"http://127.0.0.1:{port.number}/sts" if is_safe else "http://sts.example/sts"
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", base)
    _, response, errors = run("aws-msk-iam", "--region", "eu-north-1", "--role-arn", "arn:aws:iam::1:role/other")
    port.release()
    assert base in errors
    assert "X-Amz" not in errors + response["error_description"]


def test_missing_credentials_and_region_are_explained(run: Any, tmp_path: Path) -> None:
    errors = run("aws-msk-iam", "--region", "eu-north-1")[2]
    assert f"AWS_ACCESS_KEY_ID, a web identity, {tmp_path}/.aws/credentials, the container" in errors
    assert "Attach a role to this host" in errors
    assert "Add --region" in run("aws-msk-iam")[2]


def test_a_user_without_a_home_has_no_credentials(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # no user has an entry
    assert run("aws-msk-iam", "--region", "eu-north-1")[1]["error"] == "no_credentials"
