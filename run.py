"""Trains, evaluates and compares from the command line; `python run.py --help` shows how."""

if __name__ == "__main__":
  import signal

  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during an import would print a traceback
  from jaxreg.command import main

  main()
