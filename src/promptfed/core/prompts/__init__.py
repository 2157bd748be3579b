"""Where a prompt enters: pixels around or on the image, or tokens beside its patches."""
