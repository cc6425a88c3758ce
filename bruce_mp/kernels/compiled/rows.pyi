from bruce_mp.slab.rows import Row as Row
