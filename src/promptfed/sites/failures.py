"""What a coordinator is told when something goes wrong at a site."""

import errno

FULL = (errno.ENOSPC, errno.EDQUOT)


def describe_failure(error: Exception) -> str:
    """Return what a coordinator is told of a failure at a site: nothing private, but a full disk by its name."""
    if isinstance(error, OSError) and error.errno in FULL:
        return "its disk is full, so it cannot take part until its owner frees some space"
    return f"{type(error).__name__}; the site's own log has the details"
