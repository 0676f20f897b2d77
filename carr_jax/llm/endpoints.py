"""Where a language model is reached: addresses, the model's name there, and where the keys are found.

A key stands in an environment variable, and only the variable's name in a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carr_jax.addresses import http_address
from carr_jax.records import InputError

_FORM = 'such as "https://api.example.com/v1 KEY_VARIABLE" or "http://10.0.0.5:8000/v1"'


@dataclass(frozen=True)
class Endpoint:
    """`url` is the part before /chat/completions; `key_names` are environment variables, () for no key.

    `model` is the model's name at this address, "" when it is the one it has everywhere.
    """

    url: str
    key_names: tuple[str, ...] = ()
    model: str = ""


def parse_endpoint(text: str) -> Endpoint:
    """Reads "URL", "URL KEYS" or "URL KEYS MODEL"; KEYS are variables with commas between, or "-" for none.

    Raises InputError for anything else, a URL that is not http(s) or holds a password, and a key that stands
    there itself.
    """
    parts = text.split()
    if not 1 <= len(parts) <= 3:
        raise InputError(f"{text!r} is no endpoint, {_FORM}")
    url, keys, model = parts + ["-", ""][len(parts) - 1 :]
    address = http_address(url)
    if address is None or address.query or address.fragment:
        raise InputError(f"{url!r} is no address, {_FORM}")
    names = () if keys == "-" else tuple(keys.split(","))
    if "@" in address.netloc or not all(name.isidentifier() and name.isascii() for name in names):
        raise InputError(
            f"the endpoint at {address.hostname} holds what is no variable name; put the key into an "
            "environment variable, and the name of that here"
        )
    return Endpoint(url.rstrip("/"), names, model)


def missing_keys(endpoint: Endpoint, environment: Mapping[str, str]) -> list[str]:
    """The variables of an endpoint that are not set, or are set to nothing."""
    return [name for name in endpoint.key_names if not environment.get(name, "").strip()]
