"""What the toolkit knows and decides, in pure Python.

Standard library and relative imports only: the same files run inside Ansible modules, inside the controller's plugins,
and on the nodes as the zipapp ``rankctl.pyz``, where no controller and no Ansible exist.
"""
