"""Offline bundles: an engine, models and Enginebay itself, packed on one host for another that reaches no network.

    DIR/bundle.json         the manifest: target, packages, models, parts, each with its sha256
    DIR/bundle.tar[.001…]   one plain tar, cut into parts where asked: wheels as the index has them, and model files
    DIR/install.py          runs there with Python alone: makes an environment for `bay`, then `bay bundle install`

`create` makes one, `checking` says what is wrong with one, `installing` puts it into this host's home.
"""
