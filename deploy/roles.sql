-- What PostgreSQL's image runs once, as the superuser, when its data folder is new: a database, and the role that owns it
-- and may do nothing else. Both have the name in APP_ROLE; the password is in APP_PASSWORD, and in no argument.
\set ON_ERROR_STOP on
\getenv role APP_ROLE
\getenv password APP_PASSWORD

CREATE ROLE :"role" LOGIN PASSWORD :'password'
    NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
CREATE DATABASE :"role" OWNER :"role";
REVOKE ALL ON DATABASE :"role", postgres, template1 FROM PUBLIC;
