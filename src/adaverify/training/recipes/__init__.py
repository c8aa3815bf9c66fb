"""One recipe a method."""

from adaverify.training.recipes.base import DraftSize, Recipe, TargetInfo
from adaverify.training.recipes.block import DFlash2Recipe, DFlashRecipe, DSparkRecipe
from adaverify.training.recipes.chain import Eagle3Recipe, MTPRecipe

RECIPES: dict[str, type[Recipe]] = {
    recipe.method: recipe for recipe in (Eagle3Recipe, MTPRecipe, DFlashRecipe, DFlash2Recipe, DSparkRecipe)
}

__all__ = ["RECIPES", "DraftSize", "Recipe", "TargetInfo"]
