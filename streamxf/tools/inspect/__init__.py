"""What is in a checkpoint, in figures: totals, a tree of modules, layers side by side, and a page for the browser."""

from streamxf.tools.inspect.summary import ItemTotals as ItemTotals
from streamxf.tools.inspect.summary import Summary as Summary
from streamxf.tools.inspect.summary import TensorStatistics as TensorStatistics
