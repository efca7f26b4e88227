"""Tasks, actors and objects for every engine: what `import dray` offers."""
