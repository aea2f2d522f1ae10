// The precompiled headers need a source.
