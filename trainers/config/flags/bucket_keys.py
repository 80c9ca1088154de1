"""Manifests that flags name by bucket and key: `--s3_bucket b --s3_train_csv_key speech/train.csv …`."""

from collections.abc import Mapping
from typing import Any

from trainers.config.storage_location import S3_SCHEME, is_url
from trainers.errors import ConfigError

BUCKET = "s3_bucket"
# Field and split of each key.
MANIFEST_KEYS = {
    "s3_train_csv_key": ("data.train", "training"),
    "s3_valid_csv_key": ("data.validation", "validation"),
    "s3_test_csv_key": ("data.test", "test"),
}


def with_urls(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of flags with the URL of a manifest in place of each key.

    Raises:
        ConfigError: the bucket is missing, or all keys are; or a key is a URL itself.
    """
    bucket, keys = values.get(BUCKET), {name: values[name] for name in MANIFEST_KEYS if values.get(name) is not None}
    if bucket is None and not keys:
        return dict(values)
    if bucket is None:
        name, key = next(iter(keys.items()))
        raise ConfigError(f"--{BUCKET} is missing: --{name} {key} is the key of a manifest in it")
    if not keys:
        raise ConfigError(
            f"--{BUCKET} {bucket}: name the manifests in it, by {', '.join(f'--{key}' for key in MANIFEST_KEYS)}"
        )
    for name, key in keys.items():
        if is_url(key):
            field, _ = MANIFEST_KEYS[name]
            raise ConfigError(f"--{name} {key}: give the key in --{BUCKET} alone, or the URL by --set {field}={key}")
    root = bucket.removeprefix(S3_SCHEME).strip("/")
    return {**values, **{name: f"{S3_SCHEME}{root}/{key.lstrip('/')}" for name, key in keys.items()}}
