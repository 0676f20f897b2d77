"""The container `carr-xor-sha256-v1`, in which the public CaRR code ships its evaluation files.

It keeps questions out of what search engines index; it is no secret.  The key is the SHA-256 of the password,
repeated; there is no check of the password, so we look whether JSON lines of the promised size come out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from carr_jax.records import InputError

FORMAT = "carr-xor-sha256-v1"
PASSWORD = "CARR_JAX_DATA_PASSWORD"  # the environment variable: a command line is seen by others


def password() -> str:
    """The password of encrypted files.  Raises InputError when none is given."""
    if not (given := os.environ.get(PASSWORD, "")):
        raise InputError(f"the file is encrypted; put its password into the environment variable {PASSWORD}")
    return given


def unlock(file: Path, password: str) -> bytes:
    """The JSON lines in a container; nothing decrypted is written to disk.

    Raises InputError for a file that is no such container, and for a wrong password.
    """
    try:
        container = json.loads(file.read_bytes())
        if container["format"] != FORMAT:
            raise ValueError(f"its format is {container['format']!r:.80}")
        size = int(container["size"])
        locked = base64.b64decode(container["ciphertext_b64"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: no container {FORMAT} ({error!r})") from None
    if len(locked) != size:
        raise InputError(f"{file}: {len(locked)} bytes where {size} are promised; fetch it again")
    plain = apply_key(locked, password)
    if not plain.lstrip().startswith(b"{"):
        raise InputError(f"{file}: the password in {PASSWORD} does not open it")
    return plain


def apply_key(data: bytes, password: str) -> bytes:
    """Encrypts or decrypts: the same work."""
    digest = np.frombuffer(hashlib.sha256(password.encode()).digest(), np.uint8)
    return (np.frombuffer(data, np.uint8) ^ np.resize(digest, len(data))).tobytes()
