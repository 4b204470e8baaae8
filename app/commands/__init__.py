"""The subcommands of `logprobe`, one module each: ``add_arguments(parser)`` is light, ``run(arguments)`` does the work.

Only the module of the command that was asked for is imported, so that ``logprobe --help`` stays fast and works without extras.
"""
