"""Offline bundles: engines, models and Enginebay itself, packed on one host for another without a network.

DIR/bundle.json         the manifest: target, packages, models and parts, with sha256 hashes
DIR/bundle.tar[.001…]   one plain tar of wheels and model files, optionally split into parts
DIR/install.py          needs only Python: creates an environment for `bay`, then runs `bay bundle install`
"""
