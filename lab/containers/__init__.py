"""The container pair: systemd containers at native speed."""
