-- A registry database of format 1, as the first versions made it: before retained topics, positions and tables.
CREATE TABLE channels (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "channels" VALUES('lab.declared','{"name":"lab.declared","declared":true,"binds_schema":false,"binds_access":false,"schema_hash":null,"schema_version":null,"schema_type":null,"schema_id":null,"schema":"unverified","access":null,"priority":"normal","config":{},"metadata":{},"generation":0,"table":null,"conflict":null,"groups":{},"created_at":1794974059.2112958,"revision":2,"producers":{},"consumers":{}}');
CREATE TABLE consumers (channel TEXT, consumer_id TEXT, record TEXT NOT NULL, PRIMARY KEY (channel, consumer_id))
    WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('last_schema_id',1);
INSERT INTO "meta" VALUES('probe',0);
INSERT INTO "meta" VALUES('revision',2);
CREATE TABLE producers (channel TEXT, producer_id TEXT, record TEXT NOT NULL, PRIMARY KEY (channel, producer_id))
    WITHOUT ROWID;
CREATE TABLE schema_settings (kind TEXT, subject TEXT, record TEXT NOT NULL, PRIMARY KEY (kind, subject))
    WITHOUT ROWID;
CREATE TABLE schemas (subject TEXT, version INTEGER, record TEXT NOT NULL, PRIMARY KEY (subject, version))
    WITHOUT ROWID;
INSERT INTO "schemas" VALUES('orders',1,'{"subject":"orders","version":1,"schema_id":1,"schema_type":"JSON","schema_hash":"5f9e2e21befb73befe3d1c17363dc26f993efa802c67a5eefbf0e7a13d6cefa4","schema":"{\"type\": \"object\", \"properties\": {\"id\": {\"type\": \"integer\"}}}","guid":"77dd957d-0822-4d2e-d32b-79ecbd6fc158","references":[],"metadata":null,"rule_set":null,"is_deleted":false}');
PRAGMA application_id = 0x4D484231;
PRAGMA user_version = 1;
