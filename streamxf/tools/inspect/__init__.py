"""What is in a checkpoint, in figures: totals, a tree of modules, layers side by side, and a page for the browser."""

from streamxf.tools.inspect.inspect import ItemTotals as ItemTotals
from streamxf.tools.inspect.inspect import Summary as Summary
from streamxf.tools.inspect.inspect import TensorStatistics as TensorStatistics
