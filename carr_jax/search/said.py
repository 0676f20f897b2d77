"""What a policy is told of a page that it cannot have: few sentences, short, and always the same.

The reason behind each goes to the trajectory and the metrics, and never to the policy.
"""

from __future__ import annotations

from carr_jax.search.browser import NO_ADDRESS, Missing

NOT_OPENED = "This address cannot be opened."
NO_ANSWER = "The site does not answer."
FORBIDDEN = "The site does not show this page."
NOT_TEXT = "This page is not text."
TOO_LARGE = "This page is too large."
NOTHING = "This page has no text."
WITHHELD = "This page cannot be shown."

_SENTENCES = {
    "scheme": NOT_OPENED,
    "userinfo": NOT_OPENED,
    "port": NOT_OPENED,
    "private": NOT_OPENED,
    "refused": NOT_OPENED,
    "robots": FORBIDDEN,
    "redirects": NO_ADDRESS,
    "dns": NO_ADDRESS,
    "binary": NOT_TEXT,
    "encoding": NOT_TEXT,
    "extraction": NOT_TEXT,
    "too_large": TOO_LARGE,
    "empty": NOTHING,
    "withheld": WITHHELD,
}


def missing(reason: str) -> Missing:
    """The answer for a reason; a site that times out, breaks off or has no connection does not answer."""
    return Missing(_SENTENCES.get(reason, NO_ANSWER), reason)


def status_missing(status: int) -> Missing:
    """The answer for a page whose site says `status` instead of showing it."""
    reason = f"http_{status}"
    if status in (400, 404, 405, 406, 410, 414) or status < 400:
        return Missing(NO_ADDRESS, reason)
    return Missing(NO_ANSWER if status in (408, 429) or status >= 500 else FORBIDDEN, reason)
