"""README's first steps: the blocks that are pasted into a shell, and the files that these write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

README: Final = Path(__file__).parents[2] / "README.md"
BLOCKS: Final = re.findall(r"^```bash\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
FILES: Final = dict(re.findall(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF$", "".join(BLOCKS), re.DOTALL | re.MULTILINE))
