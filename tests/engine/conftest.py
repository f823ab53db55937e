"""Being here makes the models and loops beside it importable from every engine test."""
