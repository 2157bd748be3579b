"""Questions to a finished run: predictions, pictures, quality, audits and figures."""
