"""The subcommands of `logprobe`, one module each.

``run(arguments)`` of a module does the work and returns the exit code. Only the module of the requested command is
imported. Commands are declared in `logprobe.app.surface.commands`.
"""
