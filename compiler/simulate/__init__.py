"""Programs run on this machine: whole, and on virtual chips whose traffic is counted."""
