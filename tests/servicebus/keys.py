"""The one key there is, and whether a shared access signature was made with it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import parse_qsl

KEY_NAME, KEY = "RootManageSharedAccessKey", "dGVzdC1rZXk="


def is_authorised(token: str) -> bool:
    given = dict(parse_qsl(token.partition(" ")[2]))
    quoted = token.partition("sr=")[2].partition("&")[0]
    wanted = hmac.new(KEY.encode(), f"{quoted}\n{given.get('se')}".encode(), hashlib.sha256).digest()
    return given.get("skn") == KEY_NAME and given.get("sig") == base64.b64encode(wanted).decode()
