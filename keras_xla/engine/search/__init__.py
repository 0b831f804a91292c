"""How tokens are chosen, as pure functions of fixed shapes: what executables for generation compute."""
