"""The whole system on one machine, without an account: the synthesized template on an emulator, workers as processes.

Names, environment and settings come from the template, never from a second copy. What the emulator cannot do is
bridged in `local.bridges` and nowhere else.
"""
