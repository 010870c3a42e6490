"""Which texts look as if they held a secret: detect-secrets, what it does not know (Portuguese words, bare values), and
gitleaks where it is installed.

A text that is held back for nothing costs a passage in search until someone releases it; a secret that leaves cannot be
called back. So in doubt it is held, but values that are plainly none (placeholders, types, references) are let through.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trecho.db import Connection
from trecho.errors import ExitCode, TrechoError

# Where gitleaks is, when it is not on the path; off: it is not used.
GITLEAKS_VARIABLE = "TRECHO_GITLEAKS"
_GITLEAKS_TIMEOUT_S = 300
# Texts of one scan of what is staged.
_BATCH_TEXTS = 500
_BATCH_CHARS = 4 << 20
# Texts that this process has found harmless, by SHA-256: a sync scans what it stages, and embeds it right after. About
# 100 bytes each.
_REMEMBERED = 200_000
_harmless: set[bytes] = set()

# Only a line with one of these, or with a long run of characters that has a digit in it, is looked at closely: the
# patterns of the detectors cost milliseconds a passage, and most passages are prose. Lower case; plain `in` is much
# faster than a pattern of alternatives.
# fmt: off
_WORDS = (
    "passw", "passphrase", "pwd", "senha", "contrase", "secret", "segredo", "token", "credenc", "credent", "apikey",
    "api_key", "api-key", "accesskey", "access_key", "access-key", "authkey", "auth_key", "auth-key",
    "privatekey", "private_key", "private-key", "clientkey", "client_key", "client-key", "signingkey",
    "signing_key", "signing-key", "encryptionkey", "encryption_key", "encryption-key", "chave", "://",
    "identified by", "private key",
)
# Each of them holds one of these, so that a passage is asked for fewer.
_ROOTS = (
    "passw", "passp", "pwd", "senha", "contrase", "secret", "segredo", "token", "credenc", "credent", "key", "chave", "://",
    "identified by",
)
# fmt: on
# What each way to give a secret by name needs one of.
_SIGNS = (":", "=", '"', "'", "`", "BEGIN ")
_PASSWORD_WORDS = r"password|passwd|passphrase|pwd|senha|contraseña|contrasena"
_OTHER_WORDS = (
    r"secret|segredo|token|credential|credencial|api[_-]?key|access[_-]?key|auth[_-]?key|private[_-]?key"
    r"|client[_-]?key|signing[_-]?key|encryption[_-]?key|chave"
)
# name: value, name = value, "name": "value", NAME=value; the value bare or quoted. A name is tried from its first
# character alone.
_ASSIGNMENT = re.compile(
    rf"(?<![\w.-])(?P<key>[\w.-]*(?P<word>{_PASSWORD_WORDS}|{_OTHER_WORDS})[\w.-]*)[\"'\]]{{0,2}}\s*(?::=|=>|[:=])\s*"
    r"(?:(?P<quote>[\"'`])(?P<quoted>[^\"'`]+)(?P=quote)|(?P<bare>[^\s\"'`,;]+))(?P<end>[,;]?\s*(?:#.*|//.*)?$)?",
    re.IGNORECASE,
)
_SQL_PASSWORD = re.compile(r"\b(?:password|identified by)\s+'([^']+)'", re.IGNORECASE)
_BASIC_AUTH = re.compile(r"://[^\s:/?#@\"'`]+:([^\s/?#@\"'`]+)@")
# What the name of an attribute of a secret ends in, rather than of the secret itself.
_ABOUT_IT = re.compile(
    r"(?:names?|nome|refs?|files?|arquivo|paths?|caminho|dir|ids?|types?|tipo|ur[il]|length|len|size|count|policy|fields?"
    r"|column|label|env|var|manager|store|class|provider|expir\w*|ttl|timeout|min|max|rotation|prompt|hint|placeholder"
    r"|algorithm|encryption|required|enabled|version|endpoint|header|format)$",
    re.IGNORECASE,
)
_NO_SECRETS = re.compile(
    r"(?:minha[_-]|sua[_-]|my[_-]|your[_-])?(?:password|passwd|pass|pwd|senha|secret|segredo|token|key|chave|user|usuario)"
    r"|texto|valor|value|postgres|admin|root|change[_-]?me|troque|trocar-me|replace_me|example|exemplo|sample|test|teste|dummy|fake|foobar"
    r"|null|nil|none|undefined|true|false|yes|no|sim|nao|não|required|optional|obrigat[oó]ri[ao]|opcional|hidden|masked"
    r"|redacted|omitted|encrypted|plain|plaintext|md5|scram-sha-256|trust|peer|ident|string|str|text|varchar|char|bytes"
    r"|bytea|number|integer|int|boolean|bool|any|unknown|object|secretstr|secretstring|option|final|static|const",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"[0-9]")
_PATH = re.compile(r"(?:[~.]{0,2}/)[\w.-]+(?:/[\w.-]+)*/?")
_REFERENCE = re.compile(r"&?[A-Za-z_]\w*(?:(?:\.|::|->)[A-Za-z_]\w*)+\W*")
_CODE = re.compile(
    r"[;{]\s*$|^\s*\}[;,)]*\s*$|=>|\b(?:fn|let|const|def|class|return|import|public|impl|func|struct)\b",
    re.MULTILINE,
)
_KEY_HEAD = re.compile(r"BEGIN [A-Z0-9 ]*PRIVATE KEY")
_TOKENS = re.compile(
    r"(?P<Private_Key>PuTTY-User-Key-File-|AGE-SECRET-KEY-1)"
    r"|(?P<Google_API_Key>\bAIza[0-9A-Za-z_-]{35})"
    r"|(?P<Google_OAuth_Token>\bya29\.[0-9A-Za-z_-]{20,})"
    r"|(?P<API_Key>\bsk-(?:ant-|proj-)?[0-9A-Za-z_-]{32,}|\bpa-[0-9A-Za-z_-]{40,})"
    r"|(?P<Hugging_Face_Token>\bhf_[0-9A-Za-z]{30,})"
    r"|(?P<GitHub_Token>\bgithub_pat_[0-9A-Za-z_]{40,})"
    r"|(?P<Vault_Token>\bhvs\.[0-9A-Za-z_-]{24,})"
    r"|(?P<DigitalOcean_Token>\bdo[opr]_v1_[0-9a-f]{60,})"
    r"|(?P<Authorization_Header>(?i:\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[\w.+/=-]{16,})"
)
# The inside of a key whose first line stands in another passage.
_KEY_LINE = 60
_KEY_BODY = re.compile(rf"(?:^[ \t]*[A-Za-z0-9+/]{{{_KEY_LINE},76}}={{0,2}}[ \t]*$\n?){{2,}}", re.MULTILINE)
# A shorter run of characters has no shape of a secret.
_LONG_RUN = 16
_PUBLIC_BODY = re.compile(
    r"BEGIN (?:CERTIFICATE|PUBLIC KEY|RSA PUBLIC KEY|PGP PUBLIC|PGP SIGNATURE|PGP MESSAGE)"
)
# Plugins of detect-secrets that find no secret, or too much else (Artifactory: words such as APDUCommand), or that are
# done here, with placeholders let through.
_LEFT_OUT = {
    "IPPublicDetector",
    "ArtifactoryDetector",
    "KeywordDetector",
    "BasicAuthDetector",
    "HexHighEntropyString",
    "Base64HighEntropyString",
}
_MIN_ENTROPY = 4.5  # bits per character, as detect-secrets sets it for base64


class GateBroken(TrechoError):
    """The secret scan cannot be made, so no text may leave."""

    exit_code = ExitCode.REFUSED


def hold_staged(conn: Connection, pass_id: int) -> int:
    """Scan what a pass is about to publish and quarantine what is found. Returns: texts of the pass that are held.

    Raises: GateBroken.
    """
    found: list[tuple[bytes, str]] = []
    # A cursor in the server: as many texts as there are, memory for a batch of them.
    with conn.transaction(), conn.cursor(name="trecho_scan") as cursor:
        cursor.itersize = _BATCH_TEXTS
        cursor.execute("SELECT text_hash, text FROM trecho.texts_to_scan(%s)", (pass_id,))
        batch: list[dict[str, Any]] = []
        size = 0
        for row in cursor:
            batch.append(row)
            size += len(row["text"])
            if len(batch) >= _BATCH_TEXTS or size >= _BATCH_CHARS:
                found.extend(_findings(batch))
                batch, size = [], 0
        found.extend(_findings(batch))
    for text_hash, kinds in sorted(found):
        conn.execute("SELECT trecho.quarantine_text(%s, %s)", (text_hash, kinds))
    held = conn.execute("SELECT trecho.pass_quarantined(%s) AS held", (pass_id,)).fetchone()
    return int(held["held"]) if held else 0


def _findings(batch: Sequence[dict[str, Any]]) -> list[tuple[bytes, str]]:
    kinds = screen_once([row["text"] for row in batch])
    return [(row["text_hash"], ", ".join(k)) for row, k in zip(batch, kinds, strict=True) if k]


def screen(texts: Sequence[str]) -> list[list[str]]:
    """Kinds of secret that each text seems to hold, sorted; empty where it may leave. Raises: GateBroken."""
    kinds = [set(suspicions(text)) for text in texts]
    program = _gitleaks_program() if texts else None
    if program is not None:
        kinds = [one | more for one, more in zip(kinds, _gitleaks(program, texts), strict=True)]
    return [sorted(found) for found in kinds]


def screen_once(texts: Sequence[str]) -> list[list[str]]:
    """As screen, but what this process has found harmless before is not scanned again. Raises: GateBroken."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    new = [number for number, digest in enumerate(digests) if digest not in _harmless]
    kinds: list[list[str]] = [[] for _ in texts]
    for number, found in zip(new, screen([texts[number] for number in new]), strict=True):
        kinds[number] = found
        if not found and len(_harmless) < _REMEMBERED:
            _harmless.add(digests[number])
    return kinds


def batches_per_scan() -> int:
    """Requests worth having scanned at once: gitleaks takes about a second of a core to start."""
    return 1 if _gitleaks_program() is None else 16


def _gitleaks_program() -> str | None:
    """Path of gitleaks; None where it is not installed, or is switched off."""
    given = os.environ.get(GITLEAKS_VARIABLE, "")
    if given.lower() in ("off", "no", "0", "false"):
        return None
    program = shutil.which(given or "gitleaks")
    if given and program is None:
        raise GateBroken(
            f"{GITLEAKS_VARIABLE} names {given!r}, which cannot be run",
            hint=f"Correct it, or set {GITLEAKS_VARIABLE}=off to scan with detect-secrets alone.",
        )
    return program


def _gitleaks(program: str, texts: Sequence[str]) -> list[set[str]]:
    """Rules of gitleaks that each text breaks. A file for each text: in one stream, a rule could span two of them."""
    with tempfile.TemporaryDirectory(prefix="trecho-gate-") as name:
        folder, report = Path(name, "texts"), Path(name, "report.json")
        folder.mkdir()
        for number, text in enumerate(texts):
            # Some rules look at .yaml alone, none leaves it out.
            (folder / f"{number}.yaml").write_text(text, encoding="utf-8")
        command = [program, "dir", "--no-banner", "--no-color", "--log-level", "error", "--redact"]
        # What a file says about itself (gitleaks:allow) does not decide what leaves.
        command += ["--ignore-gitleaks-allow", "--exit-code", "0"]
        command += ["--report-format", "json", "--report-path", str(report), str(folder)]
        try:
            done = subprocess.run(
                command,
                cwd=name,  # not the user's: a .gitleaksignore there is about other files
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_GITLEAKS_TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                raise _broken(program, f"exit code {done.returncode}", done.stderr)
            rules: list[set[str]] = [set() for _ in texts]
            for finding in json.loads(report.read_text(encoding="utf-8")) or []:
                rules[int(Path(finding["File"]).stem)].add(f"gitleaks {finding['RuleID']}")
            return rules
        except subprocess.TimeoutExpired:
            raise _broken(program, f"no answer within {_GITLEAKS_TIMEOUT_S} s", "") from None
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            raise _broken(program, f"no report that can be read ({type(error).__name__})", "") from None


def _broken(program: str, reason: str, said: str) -> GateBroken:
    return GateBroken(
        f"the secret scan failed, and nothing was sent: {program} gave {reason}",
        detail=said.strip()[-500:],
        hint=f"gitleaks 8.19 or later is wanted; {GITLEAKS_VARIABLE}=off scans with detect-secrets alone.",
    )


def suspicions(text: str) -> list[str]:
    """Kinds of secret that detect-secrets and the rules here see, sorted. The secret itself is never told."""
    found: set[str] = set()
    lower = text.lower()
    if any(root in lower for root in _ROOTS):
        named = [line for line in text.splitlines() if _may_name(line)]
        code = bool(named) and _CODE.search(text) is not None
        for line in named:
            found.update(_named(line, code))
    # Most passages have no long run of characters, and the longest one is found quickly.
    longest = max(map(len, text.split()), default=0)
    if longest >= _LONG_RUN:
        for line in text.splitlines():
            if any(len(run) >= _LONG_RUN and _strong(run) for run in line.split()):
                found.update(_shaped(line))
    if longest >= _KEY_LINE and _KEY_BODY.search(text) and not _PUBLIC_BODY.search(text):
        block = "".join(match.group() for match in _KEY_BODY.finditer(text))
        if _mixed(block):
            found.add("Private Key")
    return sorted(found)


def _may_name(line: str) -> bool:
    """Whether a line may give a secret by name: prose about secrets is common, and lacks the signs of an assignment."""
    if not any(sign in line for sign in _SIGNS):
        return False
    lower = line.lower()
    return any(word in lower for word in _WORDS)


def _named(line: str, code: bool) -> Iterator[str]:
    """What is called a secret."""
    if _KEY_HEAD.search(line):
        yield "Private Key"
    if any(_plausible(value, code=code, bare=False) for value in _BASIC_AUTH.findall(line)):
        yield "Basic Auth Credentials"
    _, keyword, _ = _scanner()
    assigned = _ASSIGNMENT.search(line) is not None
    if (
        (assigned and _assigned(line, code))
        or any(_plausible(value, code=code, bare=False) for value in _SQL_PASSWORD.findall(line))
        # Forms of code that only the keyword detector knows.
        or (not assigned and any(_plausible(v, code=code, bare=False) for v in keyword.analyze_string(line)))
    ):
        yield "Secret Keyword"


def _shaped(line: str) -> Iterator[str]:
    """What has the shape of a secret."""
    for match in _TOKENS.finditer(line):
        yield str(match.lastgroup).replace("_", " ")
    detectors, _, entropy = _scanner()
    for detector in detectors:
        if any(True for _ in detector.analyze_string(line)):
            yield str(detector.secret_type)
    for value in entropy.analyze_string(line):
        if (
            len(value) >= 20
            and _mixed(value)
            and not re.match(r"sha\d+-", value)
            and entropy.calculate_shannon_entropy(value) > _MIN_ENTROPY
        ):
            yield "Base64 High Entropy String"


def _assigned(line: str, code: bool) -> bool:
    """Whether the line gives something named like a secret a value like one."""
    for match in _ASSIGNMENT.finditer(line):
        if _ABOUT_IT.search(match["key"]):
            continue
        value = match["quoted"] or match["bare"]
        bare = match["quoted"] is None
        if re.fullmatch(_PASSWORD_WORDS, match["word"], re.IGNORECASE) or match["word"].lower() in (
            "secret",
            "segredo",
        ):
            if not _plausible(value, code=code, bare=bare):
                continue
            # In the middle of a sentence a value is a word, unless it looks like a password.
            if not bare or match["end"] is not None or (len(value) >= 5 and _strong(value)):
                return True
        elif _plausible(value, code=code, bare=bare) and len(value) >= 16 and _strong(value):
            return True
    return False


def _plausible(value: str, *, code: bool, bare: bool) -> bool:
    """Whether a value may be a secret, and not a placeholder, a type, a path or a reference."""
    value = value.strip()
    if not _meant(value):
        return False
    if bare and (re.search(r"[()\[\]<>]", value) or _REFERENCE.fullmatch(value)):
        return False
    # A bare word: in code the name of something, elsewhere perhaps a weak password.
    if bare and re.fullmatch(r"[A-Za-zÀ-ÿ_-]+", value):
        return not code and len(value) >= 6
    return True


def _meant(value: str) -> bool:
    """Whether a value stands for itself."""
    from detect_secrets.filters.heuristic import is_templated_secret

    if len(value) < 4 or _NO_SECRETS.fullmatch(value) or any(c.isspace() for c in value):
        return False
    if value[0] in "$%{<!*&([|>" or "${" in value or "{{" in value or "..." in value or "…" in value:
        return False
    if is_templated_secret(value) or not set(value.lower()) - set("x*.-_#•?"):
        return False
    return not (_PATH.fullmatch(value) and not _mixed(value))


def _strong(value: str) -> bool:
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def _mixed(value: str) -> bool:
    return (
        any(c.isdigit() for c in value)
        and any(c.isupper() for c in value)
        and any(c.islower() for c in value)
    )


@cache
def _scanner() -> tuple[list[Any], Any, Any]:
    """Detectors of detect-secrets with a fixed pattern, the one for keywords in code, the one for entropy."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.high_entropy_strings import Base64HighEntropyString
    from detect_secrets.plugins.keyword import KeywordDetector

    known: dict[str, Any] = get_mapping_from_secret_type_to_class()
    detectors = [detector() for detector in known.values() if detector.__name__ not in _LEFT_OUT]
    return detectors, KeywordDetector(), Base64HighEntropyString(limit=_MIN_ENTROPY)
