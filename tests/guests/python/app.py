"""A skill in Python: what componentize-py makes of it must be listed and run like any other."""

import wit_world
from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.api import Item


class WitWorld(wit_world.WitWorld):
    def greet(self, name):
        if name == "nobody":
            raise LookupError("there is nobody here")
        return f"hello {name}"


class Api(exports.Api):
    def double(self, item):
        if item.n > 100:
            raise Err("too big")
        return Item(item.name, item.n * 2)
