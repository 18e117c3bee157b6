"""Recipes of other launchers, read as they are and mapped onto ours. Pure: a mapping in, our document out."""

from __future__ import annotations

from .community import Imported, import_recipe, is_ours, name_of

__all__ = ["Imported", "import_recipe", "is_ours", "name_of"]
