"""What is done with a finished run: predictions, bundles, exports, pictures, quality, audits and figures."""
