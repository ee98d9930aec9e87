"""Griffe extension: what a package's first file imports is what the package offers."""

import griffe


class Offered(griffe.Extension):
    """Puts the imports of an __init__.py into the reference, as `__all__` would."""

    def on_members(self, *, obj, **_) -> None:
        """Marks the names of this project that an __init__.py imports from modules."""
        if obj.is_module and obj.is_init_module and obj.exports is None:
            obj.exports = [
                name
                for name, member in obj.members.items()
                if member.is_alias and member.target_path.startswith(obj.path + ".")
            ]
