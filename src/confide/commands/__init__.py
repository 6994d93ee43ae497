"""The commands, each a thin shell around one function of the package; importing a module registers its commands."""
