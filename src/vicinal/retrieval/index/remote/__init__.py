"""Indexes in a database: PostgreSQL with pgvector, and Milvus."""
