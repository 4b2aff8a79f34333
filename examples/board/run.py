"""Both halves on one machine; the board's half finds no torch."""

import subprocess
import sys

WITHOUT_TORCH = "import runpy, sys; sys.modules['torch'] = sys.modules['onnx'] = None; runpy.run_path('train_here.py')"

subprocess.run([sys.executable, "make_graph.py"], check=True)
subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True)
