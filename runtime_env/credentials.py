"""Detects credentials: in names of variables, in values, in names of files, in URLs. Pure.

Detection is by form, so false positives and negatives are possible; so each message has an alternative.
"""

import re
from fnmatch import fnmatchcase

# The only references that pip and uv expand in a requirements file
# (pip: _internal/req/req_file.py, ENV_VAR_RE; uv: requirements-txt, ENV_VAR_RE).
REFERENCE = re.compile(r"\$\{([A-Z0-9_]+)\}")

_SECRET_WORDS = frozenset(
    {"PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "SECRET", "SECRETS", "CREDENTIAL", "CREDENTIALS"}
)
# Words that make a name secret if they are the last, or before a word of _NO_MORE.
_LAST_WORDS = frozenset({"TOKEN", "PASS", "PWD", "AUTH", "AUTHORIZATION", "BEARER", "JWT"})
_NO_MORE = frozenset({"ID", "VALUE", "STRING", "TEXT"})
_SECRET_KEYS = re.compile(
    r"(^|_)(API|ACCESS|SECRET|PRIVATE|SIGNING|ENCRYPTION|ACCOUNT|STORAGE|SHARED|MASTER|SAS|AUTH|HF|HUB|WANDB|COMET)_?KEYS?(_|$)"
    r"|(^|_)CONNECTION_STRING$|(^|_)(HF|HUB|API|AUTH|ACCESS|GIT|GITHUB|GITLAB|WANDB)TOKEN$",
    re.IGNORECASE,
)
# NAME_FILE and the like contain the location of a secret; so do Google's variable and those of a shell.
_PLACES = frozenset({"FILE", "PATH", "DIR", "FOLDER", "ENV", "VAR"})
_NAMES_OF_PLACES = frozenset({"GOOGLE_APPLICATION_CREDENTIALS"})
_FOLDERS_OF_SHELLS = frozenset({"PWD", "OLDPWD"})
# Names that are not secret: tokens of tokenizers and models (bos_token, word_delimiter_token, decoder_start_token_id,
# token_type), units (loss_per_token), and passes over data (first_pass).
_TOKEN_OF_TEXT = re.compile(
    r"(?:^|_)(?:(?:BOS|EOS|SOS|PAD|UNK|CLS|SEP|MASK|DELIMITER|START|END|STOP|BLANK|SPACE|WORD|SPECIAL|LANG|LANGUAGE"
    r"|TASK|TEXT|SPEECH|SPEAKER|SILENCE|SIL|NOISE|AUDIO|IMAGE|PROMPT|PREFIX|OUTPUT|NEXT|SPLIT|JOIN|TIMESTAMP|PER|BY)"
    r"_TOKEN(?:_IDS?)?|TOKEN_(?:TYPE|LIST|LEVEL|LENGTH|LIMIT|DROPOUT)"
    r"|(?:FIRST|SECOND|SINGLE|ONE|TWO|MULTI|NUM|N)_PASS)$"
)
_SWITCHES = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off"})

# Prefixes of services' tokens. A JSON Web Token is only searched at the first position in a sequence of its characters,
# since later positions have fewer characters after them, and would make the search quadratic.
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|sk-[A-Za-z0-9_-]{20,}|rsk_[\w-]{20,}|nvapi-[\w-]{20,}|api_org_\w{20,}"
    r"|ya29\.[\w-]{20,}|npm_\w{30,}|pypi-Ag[\w-]{20,}|AIza[\w-]{30,}|(?:AKIA|ASIA)[A-Z0-9]{16})"
    r"|(?<![\w-])(?>[\w-]*?\beyJ)[\w-]{10,}+\.[\w-]{10,}+\.[\w-]*"
)
# Part of an Azure connection string.
_CONNECTION = re.compile(r"\b(?:AccountKey|SharedAccessSignature)=[^;\s]{20,}", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
# HTTP authorization, as a header or as an entry of JSON, YAML or a dict, whose quotes may be escaped; values that
# begin with one of the last characters are references or placeholders.
_AUTHORIZATION = re.compile(
    r"""(Authorization(?:\\*["'])?\s*:\s*(?:\\*["'])?(?:Bearer|Basic|Token|Api-?Key)\s+)[^\s"'$`<{%\\][^\s"'$`<{%]*""",
    re.IGNORECASE,
)

# Starts only where a scheme can begin, since a search from each of its characters would be quadratic.
_AUTHORITY = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]+)://([^/\s?#'\"]*)")
# Names in a query: token, access_token, X-Goog-Signature, clientSecret.
_PARAMETER = (
    r"[?&](?:[\w.-]*[_.-]|access|auth|client|hf|id|private|session)?"
    r"(?:token|api[_-]?key|secret|password|passwd|pwd|sig|signature)="
)
_QUERY = re.compile(rf"{_PARAMETER}(?!\$\{{)[^&\s]", re.IGNORECASE)

_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY_VALUE = re.compile(rf"({_PARAMETER})[^&\s]+", re.IGNORECASE)

_SECRET_FILES = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "id_rsa", "id_dsa", "id_ecdsa",
    "id_ed25519", ".netrc", "_netrc", ".pypirc", ".npmrc", ".htpasswd", ".git-credentials", ".pgpass", ".dockercfg",
    "credentials", "credentials.json", "credentials.yaml", "credentials.yml",
    "secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml", "service-account*.json", "service_account*.json",
    "*[-_.]credentials.json", "client_secret*.json", "kaggle.json", ".envrc", ".boto", ".s3cfg", "rclone.conf", "*.ppk",
    "token", ".token", "hf_token", ".hf_token", "hf_token.txt", "stored_tokens", "*api_key", "*api_key.txt",
)  # fmt: skip
_SECRET_FOLDERS = frozenset({".env", ".ssh", ".aws", ".gnupg", ".kube", ".azure", ".gcloud", ".huggingface", ".kaggle"})
_EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist")


def name_looks_secret(name: str) -> bool:
    """Returns True if the name of a variable indicates a secret value."""
    name = name.rstrip("_0123456789")
    words = name.upper().split("_")
    if words[-1] in _PLACES or name.upper() in _NAMES_OF_PLACES or name in _FOLDERS_OF_SHELLS or is_token_of_text(name):
        return False
    last = words[-2] if words[-1] in _NO_MORE and len(words) > 1 else words[-1]
    return not _SECRET_WORDS.isdisjoint(words) or last in _LAST_WORDS or _SECRET_KEYS.search(name) is not None


def is_token_of_text(name: str) -> bool:
    """Returns True if the name is for tokens of text, e.g. of a tokenizer."""
    return _TOKEN_OF_TEXT.search(name.upper().replace("-", "_")) is not None


def value_looks_secret(value: str) -> bool:
    """Returns True if a text contains a token, a private key, an HTTP authorization, or a URL with a password."""
    forms = (_TOKENS, _CONNECTION, _PRIVATE_KEY, _AUTHORIZATION)
    return any(form.search(value) for form in forms) or holds_literal_credentials(value)


def is_switch(value: str) -> bool:
    """Returns True if a value, whatever its name, only turns something on or off, or is empty."""
    return value.strip().lower() in _SWITCHES


def file_looks_secret(name: str) -> bool:
    """Returns True if a file of this name (no path) usually contains secrets."""
    lower = name.lower()
    if any(fnmatchcase(lower, pattern) for pattern in _EXAMPLES):
        return False
    return any(fnmatchcase(lower, pattern) for pattern in _SECRET_FILES)


def folder_looks_secret(name: str) -> bool:
    """Returns True if a folder of this name (no path) usually contains secrets."""
    return name.lower() in _SECRET_FOLDERS


def holds_literal_credentials(text: str) -> bool:
    """Returns True if a URL in the text has a password or token in plain text, not as `${NAME}`."""
    return bool(_QUERY.search(text)) or any(
        _is_literal(scheme, authority) for scheme, authority in _AUTHORITY.findall(text)
    )


def masked(text: str) -> str:
    """Returns the text with tokens, and users and passwords in URLs, replaced by `…`."""
    text = _USERINFO.sub("…", _TOKENS.sub("…", _AUTHORIZATION.sub(r"\1…", text)))
    return _QUERY_VALUE.sub(r"\1…", text)


def references_in(text: str) -> list[str]:
    """Returns the names of `${NAME}` references in a requirement line."""
    return REFERENCE.findall(text)


def _is_literal(scheme: str, authority: str) -> bool:
    userinfo, at, host = authority.rpartition("@")
    if not at:
        # A password with a / in it ends the authority early: user:pa/ss@host. A port is a number.
        port = host.rpartition("]")[2].partition(":")[2]
        return "http" in scheme.lower() and not REFERENCE.sub("", port).isdecimal() and REFERENCE.sub("", port) != ""
    user, _, password = userinfo.partition(":")
    if password:
        return REFERENCE.sub("", password) != "" or _TOKENS.search(user) is not None
    # Without a password, the user is a token, except for git@host over ssh.
    return REFERENCE.sub("", user) != "" and "ssh" not in scheme.lower()
